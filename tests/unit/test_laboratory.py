"""The laboratory's wiring, around a bench that answers from a formula."""

import pytest

from autoswizzle import kernels, tuning
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import CompileError, LaunchError, TuneError
from autoswizzle.hardware import find_gpu
from autoswizzle.laboratory import Compilers, compile_ahead, revisions
from autoswizzle.problem import GemmProblem
from autoswizzle.search.bench import Racing
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.timing import LONG, SHORT
from autoswizzle.space import candidates
from autoswizzle.verdicts import entry_of

H200 = find_gpu("H200")
PROBLEM = GemmProblem(4096, 4096, 4096, "bf16", "nt")


def test_times_are_those_of_a_source_and_a_compiler(monkeypatch):
    monkeypatch.setattr("autoswizzle.laboratory.triton_version", lambda: (3, 6))
    before = revisions()
    assert len(set(before.values())) == len(before) > 3
    monkeypatch.setattr("autoswizzle.laboratory.triton_version", lambda: (3, 9))
    assert all(before[name] != now for name, now in revisions().items())


@pytest.fixture
def laboratory(fresh, fake_laboratory):
    def build(torch_us):
        found = fake_laboratory.FakeLaboratory(H200, 0, EFFORTS["quick"], None)
        found.bench.torch_us = torch_us
        return found

    return build


def test_what_is_compiled_ahead_is_what_the_search_tries_first(laboratory):
    """The slowest family's best among it, which the ranking has far behind."""
    found = laboratory(110.0)
    found.announce(PROBLEM)
    ahead = [config for config, _ in found.compilers.announced]
    found.compilers.announced.clear()
    found.search(PROBLEM)
    later = [config for config, _ in found.compilers.announced]
    first = list(dict.fromkeys(later))[: EFFORTS["quick"].seeds]
    assert ahead == first
    assert {config.kernel for config in ahead} == {
        config.kernel for config in candidates(PROBLEM, H200)
    }


def test_a_search_ends_with_the_fastest_and_a_fair_ratio(laboratory, fake_laboratory, monkeypatch):
    monkeypatch.setattr("autoswizzle.verdicts.versions", lambda: {"torch": "2.11"})
    bench = laboratory(110.0)
    first, winner = fake_laboratory.seeds(PROBLEM)[0], fake_laboratory.winner(PROBLEM)
    found = bench.search(PROBLEM)
    assert found.final.winner == winner
    assert [failure.config for failure in found.infeasible] == [first]
    races = [task for task in bench.bench.tasks if isinstance(task, Racing)]
    assert [(race.seed, race.turn) for race in races] == [(1, SHORT), (2, SHORT), (2, LONG)]
    assert races[1].configs == (winner, TORCH)
    assert bench.bench.tasks[0].config == TORCH  # starts the worker, off the clock
    entry = entry_of(PROBLEM, bench, found)
    assert (entry.config, entry.time_us, entry.torch_us) == (winner, 100.0, 110.0)
    assert entry.ratio == pytest.approx(1.1)
    assert entry.key.source == kernels.source_hash("wgmma")
    assert entry.beats_torch
    assert (entry.fastest, entry.fastest_ratio) == (None, None)


def test_what_does_not_beat_torch_by_the_margin_is_a_torch_entry(
    laboratory, fake_laboratory, monkeypatch
):
    monkeypatch.setattr("autoswizzle.verdicts.versions", dict)
    bench = laboratory(101.0)  # 1 % slower than ours
    entry = entry_of(PROBLEM, bench, bench.search(PROBLEM))
    assert (entry.config, entry.time_us, entry.torch_us, entry.ratio) == (TORCH, 101.0, 101.0, 1.0)
    assert entry.key.source == ""
    assert not entry.beats_torch
    assert entry.fastest == fake_laboratory.winner(PROBLEM)
    assert entry.fastest_ratio == pytest.approx(1.01)


def test_a_search_whose_kernels_all_fail_has_no_entry(laboratory, fake_laboratory, monkeypatch):
    def refuse(self, task):
        raise CompileError("ptxas gives up")

    monkeypatch.setattr(fake_laboratory.Compilers, "__call__", refuse)
    with pytest.raises(TuneError, match="CompileError"):
        laboratory(100.0).search(PROBLEM)


@pytest.mark.parametrize("step", ["operands", "ranking"])
def test_a_problem_that_can_not_be_measured_costs_no_other(
    fresh, fake_laboratory, monkeypatch, step
):
    """As one without memory for its operands, or of more tiles than are ranked in time."""
    huge = PROBLEM.with_m(64)
    kind, name = {
        "operands": (fake_laboratory.Bench, "__call__"),
        "ranking": (fake_laboratory.Compilers, "ranked"),
    }[step]
    real = getattr(kind, name)

    def fails(self, task, *rest):
        if getattr(task, "problem", task) == huge:
            raise LaunchError("tried to allocate 16 TiB", "OutOfMemoryError")
        return real(self, task, *rest)

    monkeypatch.setattr(kind, name, fails)
    monkeypatch.setattr(tuning, "Laboratory", fake_laboratory.FakeLaboratory)
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    monkeypatch.setattr("autoswizzle.verdicts.versions", dict)
    failed, tuned = tuning.tune([huge, PROBLEM], effort="quick", progress=False).results
    assert failed.error == f"{huge} can't be measured: OutOfMemoryError: tried to allocate 16 TiB"
    assert failed.entry is None
    assert tuned.entry.config == fake_laboratory.winner(PROBLEM)


def test_compiling_ahead_fills_the_compilers_cache(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    config = GemmConfig(block_m=64, block_n=64, num_stages=2)
    compile_ahead([config], PROBLEM, H200)
    assert list((tmp_path / "triton").rglob("*.cubin"))
    with pytest.raises(CompileError, match="shared memory"):
        compile_ahead([GemmConfig(block_m=256, block_k=128, num_stages=5)], PROBLEM, H200)


@pytest.mark.parametrize(
    ("cores", "gpus", "processes"), [(1, 1, 1), (9, 1, 8), (64, 1, 16), (64, 2, 32), (32, 2, 31)]
)
def test_every_gpu_has_compilers_of_its_own_while_there_are_cores(
    fresh, monkeypatch, cores, gpus, processes
):
    found = {}
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    monkeypatch.setattr(
        "autoswizzle.search.ahead.AheadOfNeed", lambda factory, **options: found.update(options)
    )
    Compilers(gpus * [H200] + 3 * [find_gpu("L4")]).of(H200)
    assert found["workers"] == processes


def test_a_search_proposes_no_more_ahead_than_can_compile(laboratory, monkeypatch):
    """What is proposed before a time is known learns nothing from it."""
    found = {}
    monkeypatch.setattr("joblib.cpu_count", lambda: 4)
    monkeypatch.setattr(
        "autoswizzle.search.study.search", lambda *_, **options: found.update(options)
    )
    laboratory(100.0).search(PROBLEM)
    assert found["lookahead"] == 3
