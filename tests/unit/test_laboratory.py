"""The laboratory's wiring, around a bench that answers from a formula."""

import pytest

from autoswizzle import kernels
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import CompileError, TuneError
from autoswizzle.hardware import find_gpu
from autoswizzle.laboratory import Laboratory, compile_ahead
from autoswizzle.problem import GemmProblem
from autoswizzle.search.bench import Racing, Screening
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.measure import Measurement, Race
from autoswizzle.simulator.ranking import shortlist
from autoswizzle.simulator.resources import Resources
from autoswizzle.tuning import entry_of

H200 = find_gpu("H200")
PROBLEM = GemmProblem(4096, 4096, 4096, "bf16", "nt")
SEEDS = [item.config for item in shortlist(PROBLEM, H200)]
WINNER = SEEDS[3]  # neither the first seed nor the default


def time_of(config, torch_us):
    if config == TORCH:
        return torch_us
    return 100.0 if config == WINNER else 150.0


class Bench:
    """Stands for the GPU's worker."""

    def __init__(self, torch_us):
        self.torch_us = torch_us
        self.tasks = []

    def __call__(self, task):
        self.tasks.append(task)
        if isinstance(task, Screening):
            return self.measurement(task.config)
        return Race(
            tuple(map(self.measurement, task.configs)),
            tuple((time_of(config, self.torch_us),) * 20 for config in task.configs),
        )

    def measurement(self, config):
        time_us = time_of(config, self.torch_us)
        return Measurement(config, time_us, time_us, time_us, "sustained", host_us=5.0)


class Compilers:
    """Stands for the compiling processes; refuses the first seed."""

    def __init__(self):
        self.announced = []

    def of(self, gpu):
        assert gpu == H200
        return self

    def prefetch(self, tasks):
        self.announced += tasks

    def __call__(self, task):
        assert task in self.announced, "compiled without notice"
        config, problem = task
        assert problem == PROBLEM
        if config == SEEDS[0]:
            raise CompileError("ptxas gives up")
        return Resources(128, 100_000, 8)


@pytest.fixture
def laboratory(fresh):
    def build(torch_us):
        found = Laboratory(H200, 0, EFFORTS["quick"], None, Compilers())
        found.bench = Bench(torch_us)
        return found

    return build


def test_a_search_ends_with_the_fastest_and_a_fair_ratio(laboratory, monkeypatch):
    monkeypatch.setattr("autoswizzle.tuning.versions", lambda: {"torch": "2.11"})
    bench = laboratory(110.0)
    found = bench.search(PROBLEM)
    assert found.final.winner == WINNER
    assert [failure.config for failure in found.infeasible] == [SEEDS[0]]
    races = [task for task in bench.bench.tasks if isinstance(task, Racing)]
    assert [race.seed for race in races] == [1, 2]
    assert races[1].configs == (WINNER, TORCH)
    assert bench.bench.tasks[0].config == TORCH  # starts the worker, off the clock
    entry = entry_of(PROBLEM, bench, found)
    assert (entry.config, entry.time_us, entry.torch_us) == (WINNER, 100.0, 110.0)
    assert entry.ratio == pytest.approx(1.1)
    assert entry.key.source == kernels.source_hash("wgmma")
    assert entry.beats_torch


def test_what_does_not_beat_torch_by_the_margin_is_a_torch_entry(laboratory, monkeypatch):
    monkeypatch.setattr("autoswizzle.tuning.versions", dict)
    bench = laboratory(101.0)  # 1 % slower than ours
    entry = entry_of(PROBLEM, bench, bench.search(PROBLEM))
    assert (entry.config, entry.time_us, entry.torch_us, entry.ratio) == (TORCH, 101.0, 101.0, 1.0)
    assert entry.key.source == ""
    assert not entry.beats_torch


def test_a_search_whose_kernels_all_fail_has_no_entry(laboratory, monkeypatch):
    def refuse(self, task):
        raise CompileError("ptxas gives up")

    monkeypatch.setattr(Compilers, "__call__", refuse)
    with pytest.raises(TuneError, match="CompileError"):
        laboratory(100.0).search(PROBLEM)


def test_compiling_ahead_fills_the_compilers_cache(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    config = GemmConfig(block_m=64, block_n=64, num_stages=2)
    compile_ahead([config], PROBLEM, H200)
    assert list((tmp_path / "triton").rglob("*.cubin"))
    with pytest.raises(CompileError, match="shared memory"):
        compile_ahead([GemmConfig(block_m=256, block_k=128, num_stages=5)], PROBLEM, H200)
