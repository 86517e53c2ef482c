import dataclasses
import json
import math
import sys
from statistics import median

import pytest
import torch

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ArgumentError, ConfigError, LaunchError, WrongResultError
from autoswizzle.hardware import MIB, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search import measure as measuring
from autoswizzle.search.bench import Racing, Screening, Tasks
from autoswizzle.search.clocks import ClockLog, Clocks
from autoswizzle.search.measure import ROTATION, Measurement, Measurer
from autoswizzle.search.timing import Samples

PROBLEM = GemmProblem(48, 32, 64, "fp32", "nt")
GPU = dataclasses.replace(find_gpu("H200"), l2_bytes=16 * 1024)  # four sets of small buffers
FAST = GemmConfig(block_m=16, block_n=32)
SLOW = GemmConfig(block_m=32, block_n=32)


class Device:
    """A simulated device whose queue is always behind: only device time counts."""

    def __init__(self):
        self.time_us = 1.0

    def now_us(self):
        return self.time_us

    def record(self):
        return Stamp(self.time_us)

    def flush(self):
        self.time_us += 40

    def synchronize(self):
        pass

    def capture(self, calls):
        return lambda: [call() for call in calls]


class Stamp:
    def __init__(self, at_us):
        self.at_us = at_us

    def elapsed_time(self, end):
        return (end.at_us - self.at_us) / 1e3


@pytest.fixture
def device(monkeypatch):
    device = Device()

    def product(a, b, out):
        torch.matmul(a, b, out=out)
        device.time_us += 300

    monkeypatch.setattr(measuring, "_torch_product", product)
    return device


@pytest.fixture
def measurer(device):
    def run(config, problem, a, b, out):
        assert problem == PROBLEM
        torch.matmul(a, b, out=out)
        device.time_us += 100 if config == FAST else 200

    return Measurer(PROBLEM, GPU, run, device="cpu", backend=device)


@pytest.mark.parametrize("method", ["sustained", "burst"])
def test_a_right_candidate_is_timed(measurer, method):
    for config, time_us in ((FAST, 100), (SLOW, 200), (TORCH, 300)):
        result = measurer.measure(config, 5, method)
        assert result.config == config
        assert result.method == method
        assert result.time_us == result.low_us == result.high_us == pytest.approx(time_us)
        assert result.launches > 1
        assert not result.drifting


def test_an_unknown_method_lists_the_legal_ones(measurer):
    with pytest.raises(ArgumentError, match="method must be one of sustained, burst, got 'quick'"):
        measurer.measure(FAST, 5, "quick")


def skips_the_work(a, b, out):
    pass


def misses_the_last_row(a, b, out):
    out[:-1] = (a @ b)[:-1]


def transposes(a, b, out):
    out.copy_(a @ b.flip(1))


def is_imprecise(a, b, out):
    out.copy_((a.half() @ b.half()).float())


@pytest.mark.parametrize("wrong", [skips_the_work, misses_the_last_row, transposes, is_imprecise])
def test_a_fast_candidate_that_computes_something_else_is_not_timed(device, wrong):
    def run(config, problem, a, b, out):
        wrong(a, b, out)
        device.time_us += 1

    measurer = Measurer(PROBLEM, GPU, run, device="cpu", backend=device)
    measurer.measure(TORCH, 5)  # leaves the right product in the output
    before = device.time_us
    with pytest.raises(WrongResultError, match="elements are wrong"):
        measurer.measure(FAST, 5)
    assert device.time_us == before + 1  # it ran once


class Later:
    """Right at its first launch, then wrong, as what adds to what the launch before left."""

    def __init__(self, device):
        self.device = device
        self.launches = 0

    def __call__(self, config, problem, a, b, out):
        torch.matmul(a, b, out=out)
        self.device.time_us += 1
        if config == FAST:
            self.launches += 1
            out.mul_(self.launches)


TIMED = {
    "sustained": lambda measurer: measurer.measure(FAST, 5),
    "burst": lambda measurer: measurer.measure(FAST, 5, "burst"),
    "race": lambda measurer: measurer.race([SLOW, FAST, TORCH], 5),
}


@pytest.mark.parametrize("how", TIMED)
def test_a_candidate_that_is_right_only_once_is_not_timed(device, how):
    measurer = Measurer(PROBLEM, GPU, Later(device), device="cpu", backend=device)
    with pytest.raises(WrongResultError, match="elements are wrong"):
        TIMED[how](measurer)


@pytest.mark.parametrize("how", ["sustained", "race"])
def test_a_candidate_that_a_replay_does_not_launch_is_not_timed(measurer, device, monkeypatch, how):
    """As what is launched on another stream than the one that is captured."""
    replay = lambda: setattr(device, "time_us", device.time_us + 1)  # noqa: E731
    monkeypatch.setattr(device, "capture", lambda calls: replay)
    with pytest.raises(WrongResultError, match="elements are wrong"):
        TIMED[how](measurer)


def test_buffers_rotate_through_three_times_the_l2(device):
    problem = GemmProblem(512, 512, 2048, "bf16")
    small = dataclasses.replace(GPU, l2_bytes=4 * MIB)
    seen = set()

    def run(config, problem, a, b, out):
        seen.update({a.data_ptr(), b.data_ptr(), out.data_ptr()})
        torch.matmul(a, b, out=out)
        device.time_us += 5000

    Measurer(problem, small, run, device="cpu", backend=device).measure(FAST, 5)
    sets = math.ceil(ROTATION * 4 * MIB / problem.min_bytes)
    assert sets == 3
    assert len(seen) == 3 * sets


def test_a_race_times_all_in_turns(measurer):
    race = measurer.race([SLOW, FAST, TORCH], 50)
    assert [item.config for item in race.measurements] == [SLOW, FAST, TORCH]
    assert [item.time_us for item in race.measurements] == pytest.approx([200, 100, 300])
    assert [median(times) for times in race.rounds_us] == pytest.approx([200, 100, 300])
    assert len({len(times) for times in race.rounds_us}) == 1


def test_tasks_share_operands_until_the_problem_or_the_seed_changes(measurer):
    made = []
    other = PROBLEM.with_m(16)

    def make(problem, seed):
        made.append((problem, seed))
        return measurer

    tasks = Tasks(make)
    tasks(Screening(PROBLEM, FAST, 5))
    tasks(Screening(PROBLEM, SLOW, 5, "burst"))
    assert made == [(PROBLEM, 0)]
    race = tasks(Racing(PROBLEM, (FAST, TORCH), 5, seed=1))
    assert len(race.measurements) == 2
    tasks(Screening(other, FAST, 5))
    assert made == [(PROBLEM, 0), (PROBLEM, 1), (other, 0)]


def test_a_measurement_survives_json():
    full = Measurement(
        SLOW, 10.0, 9.5, 10.5, "burst", 20, 6.5, 0.01, True, sm_mhz=1980.0, power_w=640.5
    )
    assert Measurement.from_dict(json.loads(json.dumps(full.to_dict()))) == full
    assert Measurement.from_dict({**full.to_dict(), "config": {"kernel": "torch"}}).config == TORCH
    assert full.tflops(GemmProblem(1000, 1000, 1000)) == pytest.approx(200)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -2.0])
@pytest.mark.parametrize("field", ["time_us", "low_us", "high_us"])
def test_an_impossible_duration_is_no_measurement(value, field):
    with pytest.raises(LaunchError, match="finite and above 0"):
        Measurement(
            **{"config": FAST, "time_us": 1, "low_us": 1, "high_us": 1, "method": "burst"}
            | {field: value}
        )


def test_foreign_data_is_no_measurement():
    good = Measurement(FAST, 1, 1, 1, "burst").to_dict()
    for bad in ({}, {**good, "speed": 3}, {"time_us": 1.0}, [good], None):
        with pytest.raises(ArgumentError, match="measurement must have fields"):
            Measurement.from_dict(bad)
    with pytest.raises(ConfigError):
        Measurement.from_dict({**good, "config": {"kernel": "nope"}})


def test_drift_between_the_first_and_the_last_quarter_is_flagged():
    steady = Samples((100.0,) * 40, 5, False, 40)
    heating = Samples(tuple(100 + 0.2 * step for step in range(40)), 5, False, 40)
    assert not Measurement.from_samples(FAST, "burst", steady).drifting
    result = Measurement.from_samples(FAST, "burst", heating, Clocks(1700.0, None))
    assert result.drifting
    assert result.drift == pytest.approx(0.06, rel=0.02)
    assert result.low_us < result.time_us < result.high_us
    assert (result.sm_mhz, result.power_w) == (1700.0, None)


def test_clocks_are_read_while_something_runs(tmp_path):
    fake = tmp_path / "smi.py"
    fake.write_text(
        "import sys, time\n"
        "assert sys.argv[1] == '--id=GPU-7'\n"
        "for line in ('1500, 300.5', '1980, [N/A]', '1980, 650.5', '', 'junk, junk'):\n"
        "    print(line, flush=True)\n"
        f"open({str(tmp_path / 'printed')!r}, 'w').close()\n"
        "time.sleep(60)\n"
    )
    with ClockLog("GPU-7", (sys.executable, str(fake))) as log:
        while not (tmp_path / "printed").exists():
            pass
    assert log.clocks == Clocks(1980.0, 475.5)
    with ClockLog("GPU-7", ("no-such-program",)) as log:
        pass
    assert log.clocks == Clocks(None, None)
