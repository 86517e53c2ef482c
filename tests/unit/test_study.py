"""The search on fixed timings: cases S01 to S06 of seeds, spaces, recovery and bad candidates."""

import hashlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
import scipy.stats

from autoswizzle import space
from autoswizzle.config import SWIZZLES, TORCH, GemmConfig
from autoswizzle.errors import (
    ArgumentError,
    CompileError,
    LaunchError,
    TuneError,
    UnavailableError,
)
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.history import study_name
from autoswizzle.search.measure import Measurement, Race
from autoswizzle.search.study import rank_correlation, search, why_rejected
from autoswizzle.search.timing import LONG, SHORT
from autoswizzle.simulator.ranking import predict, rank
from autoswizzle.simulator.resources import Resources

PROBLEM = GemmProblem(2048, 2048, 2048, "bf16", "nt")
GPU = find_gpu("H200")
FITS = Resources(registers=128, shared_bytes=49152, num_warps=8)
DEFAULT = space.default_config(PROBLEM, GPU)


def branches(**changed):
    """A pointer space of 64 x 64 x 64 tiles but for what is changed."""
    fixed = {
        "block_m": (64,),
        "block_n": (64,),
        "block_k": (64,),
        "num_warps": (4,),
        "num_stages": (3,),
        "swizzle": ("grouped",),
        "group_size": (1,),
        "persistent": (False,),
    }
    return {"pointer": {**fixed, **changed}}


ALL_GROUPS = {"swizzle": SWIZZLES, "group_size": space.GROUP_SIZES}
WIDE = branches(**ALL_GROUPS, block_m=(64, 128), num_stages=(2, 3, 4))
WIDE_CONFIGS = list(space.candidates(PROBLEM, GPU, WIDE))


def trials(count):
    return EFFORTS["standard"].with_budget(trials=count)


def time_of(config):
    """A time in 100..200 us that only the configuration decides."""
    return 100 + int(hashlib.sha1(str(config).encode()).hexdigest()[:4], 16) / 655.36


class Bench:
    """Counts what is measured; fails where told to."""

    def __init__(self, failures=None):
        self.measured = []
        self.compiled = []
        self.failures = failures or {}

    def compile(self, config):
        self.compiled.append(config)
        return FITS

    def measure(self, config):
        self.measured.append(config)
        failure = self.failures.get(len(self.measured))
        if failure is not None:
            raise failure
        return Measurement(config, time_of(config), time_of(config), time_of(config), "sustained")


def run(bench, storage=None, effort=None, **options):
    options = {"branches": WIDE, "seed": 7, **options}
    return search(
        PROBLEM,
        GPU,
        measure=bench.measure,
        compile=bench.compile,
        effort=effort or trials(20),
        storage=storage,
        **options,
    )


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'studies.db'}"


def test_predictions_come_first_then_torch_and_the_default_then_the_sampler():
    bench = Bench()
    inside = rank(PROBLEM, GPU, top=5, configs=WIDE_CONFIGS)
    result = run(bench, predictions=inside)
    assert bench.measured[:7] == [*(item.config for item in inside), TORCH, DEFAULT]
    assert len(bench.measured) == len(set(bench.measured)) == 20
    assert TORCH not in bench.compiled
    assert result.stopped == "trials"
    assert [item.config for item in result.measurements] == bench.measured
    assert result.best.time_us == min(map(time_of, bench.measured))


def test_every_proposal_is_legal_and_none_is_repeated_until_the_space_is_exhausted():
    bench = Bench()
    result = run(bench, effort=trials(1000), branches=branches(**ALL_GROUPS))
    expected = {config for config in WIDE_CONFIGS if (config.block_m, config.num_stages) == (64, 3)}
    assert result.stopped == "space"
    assert Counter(bench.measured) == Counter(expected | {TORCH, DEFAULT})


def test_only_legal_seeds_run_first_and_unchanged(caplog):  # S01
    bench = Bench()
    tile = {"kernel": "pointer", "block_n": 64, "block_k": 64, "num_warps": 4}
    seeds = [
        {**tile, "block_m": 512, "group_size": 8},
        {**tile, "block_m": 64, "group_size": 2},
        {**tile, "BLOCKM": 64},
        {**tile, "block_m": 64, "group_size": float("nan")},
        {**tile, "block_m": 64, "group_size": 6},
        {**tile, "block_m": 64, "swizzle": "diagonal"},
    ]
    small = branches(block_m=(64, 128), group_size=(1, 2, 3, 4))
    with caplog.at_level(logging.WARNING):
        result = run(bench, effort=trials(6), branches=small, seeds=seeds)
    assert bench.measured[0] == GemmConfig(**seeds[1])
    assert len(bench.measured) == len(set(bench.measured)) == 6
    for config in set(bench.measured) - {TORCH, DEFAULT}:
        assert config.block_m in (64, 128)
        assert config.group_size in (1, 2, 3, 4)
    reasons = [rejection.reason for rejection in result.rejected]
    for reason, named in zip(
        reasons,
        (
            "block_m must be a power of two in 16..256, got 512",
            "config field must be one of kernel, block_m",
            "group_size must be of type int, got nan",
            "group_size must be one of 1, 2, 3, 4, got 6",
            "swizzle must be one of row, column",
        ),
        strict=True,
    ):
        assert named in reason
        assert reason in caplog.text


def test_a_study_of_another_space_still_counts_what_is_legal(url):  # S02
    old = branches(swizzle=("row", "grouped"), group_size=(1, 2, 4, 8))
    first = Bench()
    run(first, url, trials(7), branches=old)
    assert len(first.measured) == 7
    wider = Bench()
    run(wider, url, trials(20), branches=branches(**ALL_GROUPS))
    assert len(wider.measured) == 13
    assert not set(wider.measured) & set(first.measured)
    narrower = Bench()
    result = run(narrower, url, trials(20), branches=branches(swizzle=("row", "morton")))
    kept = {item.config for item in result.measurements}
    assert kept == {
        GemmConfig("pointer", 64, 64, 64, swizzle="row"),
        GemmConfig("pointer", 64, 64, 64, swizzle="morton"),
        TORCH,
        DEFAULT,
    }
    assert not set(narrower.measured) & {*first.measured, *wider.measured}
    assert result.stopped == "space"
    study = optuna.load_study(study_name=study_name(PROBLEM, GPU), storage=url)
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert len(done) == 20 + len(narrower.measured)  # nothing of the old study is lost


def test_a_finished_study_measures_nothing_again(url):
    first = run(Bench(), url)
    again = Bench()
    second = run(again, url)
    assert again.measured == again.compiled == []
    assert second.best == first.best
    assert second.measurements == first.measurements
    assert second.spearman == first.spearman


def test_times_of_another_revision_do_not_count(url):
    run(Bench(), url, revisions={"pointer": "abc"})
    same, other = Bench(), Bench()
    run(same, url, revisions={"pointer": "abc"})
    run(other, url, revisions={"pointer": "def"})
    assert same.measured == []
    assert len(other.measured) == 19  # torch has no revision here
    assert TORCH not in other.measured


def test_a_resumed_study_does_not_repeat_its_proposals(url):  # S05, the sampler's part
    first, second = Bench(), Bench()
    run(first, url, trials(10))
    result = run(second, url, trials(20))
    assert len(first.measured + second.measured) == len(result.measurements) == 20
    assert not set(first.measured) & set(second.measured)


SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
import test_study
from test_study import Bench, run, trials
bench = Bench()
def measure(config):
    with open(sys.argv[2], "a") as log:
        print(config, file=log)
    time.sleep(float(sys.argv[3]))
    return Bench.measure(bench, config)
bench.measure = measure
result = run(bench, sys.argv[1], trials(int(sys.argv[4])))
print(result.best.config)
"""


def start(tmp_path, url, pause, count, log="log"):
    script = SCRIPT.format(folder=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, url, str(tmp_path / log), str(pause), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_search_finishes_its_budget_once(tmp_path, url):  # S05
    log = tmp_path / "log"
    process = start(tmp_path, url, 0.2, 20)
    wait_for(lambda: len(lines(log)) == 8)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(lines(log)) == 8
    interrupted = lines(log)[-1]

    process = start(tmp_path, url, 0, 20)
    best = process.communicate()[0]
    assert process.returncode == 0
    counts = Counter(lines(log))
    assert counts.pop(interrupted) == 2  # once more, to the end
    assert set(counts.values()) == {1}
    assert len(counts) == 19

    third = Bench()
    began = time.monotonic()
    assert f"{run(third, url).best.config}\n" == best
    assert time.monotonic() - began < 2
    assert third.measured == []


def test_a_configuration_that_keeps_killing_the_search_is_given_up(url):
    killer = GemmConfig("pointer", 64, 64, 64, swizzle="row")

    class Deadly(Bench):
        def measure(self, config):
            if config == killer:
                self.measured.append(config)
                raise KeyboardInterrupt
            return super().measure(config)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(Deadly(), url, trials(6), seeds=[killer])
    bench = Deadly()
    result = run(bench, url, trials(6), seeds=[killer])
    assert killer not in bench.measured
    assert len(result.measurements) == 6


def test_workers_share_a_study_without_losing_or_doubling_a_trial(tmp_path, url):
    run(Bench(), url, trials(2))  # makes the tables
    logs = ["log0", "log1"]
    workers = [start(tmp_path, url, 0.1, 30, log) for log in logs]
    victim = workers[0]
    wait_for(lambda: all(len(lines(tmp_path / log)) >= 3 for log in logs))
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    for worker in workers[1:]:
        assert worker.communicate()[0]
        assert worker.returncode == 0
    killed = lines(tmp_path / logs[0])[-1]
    counts = Counter(line for log in logs for line in lines(tmp_path / log))
    assert counts.pop(killed) in (1, 2)  # it may have been stored just before the kill
    assert set(counts.values()) == {1}
    result = run(Bench(), url, trials(30))
    measured = [str(item.config) for item in result.measurements]
    assert len(measured) == len(set(measured))
    assert set(measured) >= {*counts, killed}
    assert 30 <= len(measured) < 30 + len(workers)  # a worker may have begun its last too late


def test_a_damaged_file_is_kept_aside_and_the_search_goes_on(tmp_path, url, caplog):  # S03
    run(Bench(), url)
    path = tmp_path / "studies.db"
    for damage in (b"not a database at all", path.read_bytes()[:9000], b"\0" * 5000):
        path.write_bytes(damage)
        caplog.clear()
        bench = Bench()
        assert len(run(bench, url).measurements) == 20
        assert len(bench.measured) == 20
        kept = max(tmp_path.glob("studies.db.damaged-*"))
        assert kept.read_bytes() == damage
        assert str(path) in caplog.text
        assert kept.name in caplog.text


def test_an_unusable_storage_is_named(tmp_path):
    for bad in ("nonsense", "nosuch://x", "/plain/path.db", "sqlit:///x.db"):
        with pytest.raises(ArgumentError, match="storage must be an Optuna storage URL"):
            run(Bench(), bad)
    (tmp_path / "file").write_text("")
    with pytest.raises(TuneError, match=r"file/x\.db can't be used: .*unable to open"):
        run(Bench(), f"sqlite:///{tmp_path}/file/x.db")


class OutOfResources(Exception):  # noqa: N818 - named like triton's
    pass


def test_bad_candidates_are_recorded_by_class_and_skipped():  # S06
    failures = {
        1: OutOfResources("shared memory"),
        2: RuntimeError("PassManager::run failed"),
        3: SystemError("bad call"),
        4: LaunchError("no answer within 30 s", "Hung"),
        5: LaunchError("an illegal memory access was encountered", "AcceleratorError"),
        6: MemoryError(),
        7: LaunchError("nan"),
    }
    bench = Bench(failures)
    result = run(bench)
    assert [item.kind for item in result.infeasible] == [
        "OutOfResources",
        "RuntimeError",
        "SystemError",
        "Hung",
        "AcceleratorError",
        "MemoryError",
        "LaunchError",
    ]
    assert [item.config for item in result.infeasible] == bench.measured[:7]
    assert len(result.measurements) == 13


def test_invalid_durations_never_win():
    class Broken(Bench):
        def measure(self, config):
            self.measured.append(config)
            value = float("nan") if len(self.measured) % 2 else time_of(config)
            return Measurement(config, value, value, value, "sustained")

    result = run(Broken())
    assert len(result.measurements) == 10
    assert {item.kind for item in result.infeasible} == {"InvalidDuration"}


def test_an_interrupt_stops_at_once_and_keeps_what_was_measured(url):  # S06
    first = Bench({5: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        run(first, url)
    assert len(first.measured) == 5
    second = Bench()
    assert len(run(second, url).measurements) == 20
    assert len(second.measured) == 16
    assert not set(first.measured[:4]) & set(second.measured)


def test_an_error_about_the_machine_is_not_blamed_on_the_candidate():
    with pytest.raises(UnavailableError, match="driver"):
        run(Bench({3: UnavailableError("no driver")}))


def test_all_failing_is_an_error_with_counts(url):  # S06
    class Hopeless(Bench):
        def compile(self, config):
            if config.num_stages == 3:
                raise CompileError("PassManager::run failed")
            return FITS

        def measure(self, config):
            if config == TORCH:
                return super().measure(config)
            raise LaunchError("illegal access", "AcceleratorError")

    with pytest.raises(TuneError, match=r"2048x2048x2048:bf16:nt.*H200") as caught:
        run(Hopeless(), url)
    listed = str(caught.value).rpartition(": ")[2]
    counts = {kind: int(count) for count, kind in (part.split() for part in listed.split(", "))}
    assert set(counts) == {"CompileError", "AcceleratorError"}
    assert sum(counts.values()) == 19  # and torch
    with pytest.raises(TuneError):  # told again without trying again
        run(Bench(), url)


def test_a_problem_no_kernel_can_run_is_an_error():
    bench = Bench()
    with pytest.raises(TuneError, match="none is legal"):
        search(
            GemmProblem(64, 64, 64, "fp8e4m3", "nt"),
            find_gpu("A100-40GB"),
            measure=bench.measure,
            compile=bench.compile,
            effort=trials(5),
            storage=None,
        )
    assert bench.measured == [TORCH]


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        (Resources(128, 300_000, 8), "shared memory"),
        (Resources(128, 49152, 8, spill_bytes=257), "spills must be <= 256 bytes"),
        (Resources(128, 49152, 8, warnings=("wgmma serialized due to",)), "wgmma serialized"),
        (Resources(128, 49152, 8, spill_bytes=16, warnings=("unused",)), None),
    ],
)
def test_a_compiled_kernel_is_judged_before_it_is_measured(resources, named):
    reason = why_rejected(resources, GPU)
    assert reason is None if named is None else named in reason

    class Compiled(Bench):
        def compile(self, config):
            return FITS if config == DEFAULT else resources

    bench = Compiled()
    result = run(bench, effort=trials(6))
    if named is None:
        assert len(bench.measured) == 6
    else:
        assert bench.measured == [TORCH, DEFAULT]
        assert {item.kind for item in result.infeasible} == {"Infeasible"}


def test_seconds_bound_the_trials_but_torch_and_the_default_are_owed():
    class Slow(Bench):
        def measure(self, config):
            time.sleep(0.1)
            return super().measure(config)

    bench = Slow()
    predictions = rank(PROBLEM, GPU, 50, WIDE_CONFIGS)
    effort = EFFORTS["exhaustive"].with_budget(seconds=0.25)
    result = run(bench, effort=effort, predictions=predictions)
    assert result.stopped == "seconds"
    assert 4 <= len(bench.measured) <= 5
    assert bench.measured[-2:] == [TORCH, DEFAULT]


def test_seconds_count_over_all_runs(url):
    class Slow(Bench):
        def measure(self, config):
            time.sleep(0.1)
            return super().measure(config)

    effort = EFFORTS["exhaustive"].with_budget(seconds=0.5)
    run(Slow(), url, effort)
    again = Slow()
    assert run(again, url, effort).stopped == "seconds"
    assert again.measured == []


def test_the_search_ends_when_little_is_left_to_gain():
    class Sloping(Bench):
        """Every trial takes this much longer than the first."""

        def __init__(self, slope):
            super().__init__()
            self.slope = slope

        def measure(self, config):
            self.measured.append(config)
            time_us = 100 * (1 + self.slope * len(self.measured))
            return Measurement(config, time_us, time_us, time_us, "sustained")

    flat, falling = Sloping(0.0001), Sloping(-0.005)
    assert run(flat, effort=EFFORTS["standard"]).stopped == "gain"
    assert len(flat.measured) < EFFORTS["standard"].trials / 2
    run(falling, effort=EFFORTS["standard"])
    assert len(falling.measured) > 0.8 * EFFORTS["standard"].trials


def test_the_correlation_is_spearmans_with_tied_ranks():
    pairs = [(1.0, 5.0), (1.0, 3.0), (2.0, 3.0), (4.0, 9.0), (3.0, 1.0)]
    expected = scipy.stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic
    assert rank_correlation(pairs) == pytest.approx(expected)
    assert rank_correlation(pairs[:2]) is None
    assert rank_correlation([(1.0, 2.0)] * 5) is None


def test_predicted_and_measured_times_are_correlated_in_the_result(url):
    predictions = rank(PROBLEM, GPU, 40, WIDE_CONFIGS)

    class Obedient(Bench):
        def measure(self, config):
            time_us = 1.0 if config == TORCH else predict(PROBLEM, config, GPU).time_us
            return Measurement(config, time_us, time_us, time_us, "sustained")

    bench = Obedient()
    result = run(bench, url, trials(22), predictions=predictions)
    assert result.spearman == pytest.approx(1.0)
    assert run(bench, url, trials(22)).spearman == pytest.approx(1.0)


def test_what_comes_next_is_announced():
    announced, order = [], []

    class Watched(Bench):
        def compile(self, config):
            assert config in announced
            order.append(config)
            return FITS

    run(Watched(), prefetch=announced.extend, lookahead=4)
    assert len(set(announced)) == 19
    assert set(order) == set(announced)


def test_a_search_that_may_stop_early_tries_what_is_only_waiting_first():
    """With all seeds waiting at once, two equal times are no reason to expect no gain."""

    class Level(Bench):
        def measure(self, config):
            super().measure(config)
            return Measurement(config, 100.0, 100.0, 100.0, "sustained")

    bench = Level()
    inside = rank(PROBLEM, GPU, top=10, configs=WIDE_CONFIGS)
    result = run(bench, effort=EFFORTS["quick"], predictions=inside, lookahead=50)
    assert result.stopped == "gain"
    assert {item.config for item in inside} | {TORCH, DEFAULT} <= set(bench.measured)


def test_progress_is_reported_at_the_start_and_after_each_trial(url):
    seen = []
    run(Bench({2: LaunchError("no", "Hung")}), url, trials(4), progress=seen.append)
    assert [item.done for item in seen] == [0, 1, 2, 3, 4]
    assert {item.trials for item in seen} == {4}
    assert seen[0].best is None
    assert seen[2].last.kind == "Hung"
    assert seen[4].best.time_us == min(item.last.time_us for item in (seen[1], seen[3], seen[4]))
    seen.clear()
    run(Bench(), url, trials(4), progress=seen.append)
    assert [item.done for item in seen] == [4]


def test_the_wall_time_is_split():
    class Slow(Bench):
        def compile(self, config):
            time.sleep(0.02)
            return super().compile(config)

        def measure(self, config):
            time.sleep(0.05)
            return super().measure(config)

    result = run(Slow(), effort=trials(5))
    assert result.compile_s >= 4 * 0.02
    assert result.measure_s >= 5 * 0.05
    assert result.compile_s + result.measure_s <= result.total_s
    assert result.busy_share == pytest.approx(result.measure_s / result.total_s)


def fake_race(speed):
    """Races in which ours run at speed times torch's pace; counts the calls."""
    calls = []

    def race(configs, seed, turn=SHORT):
        calls.append((tuple(configs), seed, turn))
        rounds = []
        for config in configs:
            base = 100.0 if config == TORCH else 100.0 / speed + time_of(config) / 1e6
            rounds.append(tuple(base * (1 + 0.001 * (place % 3)) for place in range(20)))
        return Race(
            tuple(
                Measurement(config, times[1], times[0], times[2], "sustained")
                for config, times in zip(configs, rounds, strict=True)
            ),
            tuple(rounds),
        )

    race.calls = calls
    return race


def test_the_final_decides_and_is_stored(url):
    race = fake_race(1.2)
    result = run(Bench(), url, race=race)
    ours = sorted(
        (item for item in result.measurements if item.config != TORCH), key=lambda m: m.time_us
    )
    finalists = [item.config for item in ours[:4]]
    expected = finalists + ([] if DEFAULT in finalists else [DEFAULT])
    pair = (result.final.fastest, TORCH)
    assert race.calls == [((*expected, TORCH), 1, SHORT), (pair, 2, SHORT), (pair, 2, LONG)]
    assert result.best.config == result.final.winner == min(expected, key=time_of)
    assert result.final.ratio == pytest.approx(1.2, rel=1e-3)
    again = fake_race(1.2)
    stored = run(Bench(), url, race=again)
    assert again.calls == []
    assert stored.final == result.final
    assert stored.best == result.best
    run(Bench(), url, trials(60), race=again)  # other finalists
    assert again.calls


@pytest.mark.parametrize("final", [None, {}, {"winner": 5}, "CHANGED", "ALONE"], ids=str)
def test_a_final_of_another_version_is_run_again(url, final):
    race = fake_race(1.2)
    expected = run(Bench(), url, race=race).final
    study = optuna.load_study(study_name=study_name(PROBLEM, GPU), storage=url)
    stored = study.user_attrs["final"]
    if final == "CHANGED":
        final = {**stored["final"], "contenders": [{"config": {}, "time_us": 0}]}
    if final == "ALONE":
        final = {**stored["final"], "own": [1.2]}
    study.set_user_attr("final", {**stored, "final": final})
    again = fake_race(1.2)
    assert run(Bench(), url, race=again).final == expected
    assert len(again.calls) == 3


def test_a_stored_final_is_judged_by_the_margin_asked_for(url):
    race = fake_race(1.015)
    assert run(Bench(), url, trials(7), race=race).final.winner == TORCH
    raced = len(race.calls)
    closer = run(Bench(), url, trials(7).with_margin(0.01), race=race)
    assert closer.final.winner == closer.final.fastest == closer.best.config
    assert run(Bench(), url, trials(7), race=race).final.winner == TORCH
    assert len(race.calls) == raced


@pytest.mark.parametrize(("speed", "runs_again"), [(1.015, True), (0.9, False)])
def test_a_stored_final_without_the_race_at_own_clocks_wins_nothing(url, speed, runs_again):
    """One of before there was such a race, which torch lost by less than the margin."""
    expected = run(Bench(), url, trials(7), race=fake_race(speed)).final
    study = optuna.load_study(study_name=study_name(PROBLEM, GPU), storage=url)
    stored = study.user_attrs["final"]
    earlier = {name: value for name, value in stored["final"].items() if name != "own"}
    study.set_user_attr("final", {**stored, "final": earlier})
    again = fake_race(speed)
    found = run(Bench(), url, trials(7).with_margin(0.0), race=again).final
    assert found == expected.judged(0.0)
    assert bool(again.calls) == runs_again
    assert study_final(url)["own"] == (list(expected.own) if runs_again else None)


def study_final(url):
    study = optuna.load_study(study_name=study_name(PROBLEM, GPU), storage=url)
    return {"own": None, **study.user_attrs["final"]["final"]}


def test_a_final_of_other_kernels_is_run_again(url):
    """The same finalists, but measured with another source or compiler."""
    seeds = rank(PROBLEM, GPU, top=5, configs=WIDE_CONFIGS)
    raced = []
    for revision, calls in (("abc", 3), ("abc", 0), ("def", 3), ("def", 0)):
        race = fake_race(1.2)
        options = {"revisions": {"pointer": revision}, "predictions": seeds, "race": race}
        run(Bench(), url, trials(7), **options)
        assert len(race.calls) == calls
        raced += race.calls[:1]
    assert raced[0] == raced[1]


def test_a_failing_final_is_an_error_that_keeps_the_search(url):
    def race(configs, seed, turn=SHORT):
        raise LaunchError("no answer", "Hung")

    with pytest.raises(TuneError, match="final of 2048x2048x2048:bf16:nt failed: no answer"):
        run(Bench(), url, race=race)
    again = Bench()
    assert run(again, url, race=fake_race(1.5)).final.ratio > 1.4
    assert again.measured == []


def test_a_finalist_that_hangs_in_the_final_costs_no_entry(url):
    sound = fake_race(1.5)
    fastest = min(run(Bench(), url).measurements, key=lambda item: item.time_us).config

    def race(configs, seed, turn=SHORT):
        if fastest in configs:
            raise LaunchError("no answer", "Hung")
        return sound(configs, seed, turn)

    result = run(Bench(), url, race=race)
    assert result.best.config == result.final.winner != fastest
    assert run(Bench(), url, race=None).best.config == fastest
    assert run(Bench(), url, race=lambda *_: pytest.fail("raced again")).final == result.final


def test_studies_are_told_apart_by_what_matters():
    names = {
        study_name(problem, gpu)
        for problem in (PROBLEM, GemmProblem(2048, 2048, 2048, "bf16", "nn"))
        for gpu in (GPU, find_gpu("H100 SXM"), GPU.with_overrides(num_sms=60))
    }
    assert len(names) == 6
    assert study_name(PROBLEM, GPU) == "nvidia-sm90-132sms-60MiB-227KiB 2048x2048x2048:bf16:nt"


def test_optunas_messages_and_settings_are_left_alone(capfd, url):
    before = optuna.logging.get_verbosity()
    run(Bench({2: LaunchError("no", "Hung")}), url)
    with pytest.raises(KeyboardInterrupt):
        run(Bench({1: KeyboardInterrupt()}), url, trials(30))
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""


def test_a_crash_between_the_outcome_and_the_end_of_a_trial_loses_nothing(tmp_path, url):
    run(Bench(), url, trials(5))
    path = tmp_path / "studies.db"
    with sqlite3.connect(path) as connection:  # as a kill leaves it, by a process that is no more
        connection.execute("UPDATE trials SET state = 'RUNNING', datetime_complete = NULL")
        connection.execute(
            "UPDATE trial_user_attributes SET value_json = replace(value_json, ?, ?) "
            "WHERE key = 'worker'",
            (f'"pid": {os.getpid()}', '"pid": 999999999'),
        )
    bench = Bench()
    assert len(run(bench, url, trials(5)).measurements) == 5
    assert bench.measured == []
