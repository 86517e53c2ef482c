"""The timers and the bench on a real device."""

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import torch

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import detect
from autoswizzle.problem import GemmProblem
from autoswizzle.search.bench import Bench, Racing, Screening
from autoswizzle.search.measure import Measurer
from autoswizzle.search.timing import CudaBackend, burst, loop, sustained
from autoswizzle.search.workers import Worker

SLEEP_CYCLES = 100_000  # 50 to 100 us
PROBLEM = GemmProblem(1024, 1024, 1024, "bf16", "nt")


@pytest.fixture
def backend():
    return CudaBackend(detect(0).l2_bytes)


def test_neither_the_flush_nor_the_host_is_in_the_window(backend):
    sleep = partial(torch.cuda._sleep, SLEEP_CYCLES)
    plain = burst(sleep, backend, 50, flush=False)
    flushed = burst(sleep, backend, 50)
    replayed = sustained(loop([sleep], backend), backend, 50)
    assert not flushed.host_bound
    for samples in (flushed, replayed):
        assert abs(median(samples.times_us) - median(plain.times_us)) < 5

    def late():
        time.sleep(1e-3)
        sleep()

    assert burst(late, backend, 50).host_bound
    hidden = sustained(loop([late], backend), backend, 50)
    assert abs(median(hidden.times_us) - median(plain.times_us)) < 5
    assert hidden.host_us > 1000


class Covered(CudaBackend):
    """Keeps the L2 as it is, and the device as busy as a flush does: no window waits."""

    def flush(self) -> None:
        torch.cuda._sleep(100_000)  # cycles


def test_a_cold_l2_is_slower_than_a_warm_one(backend):
    source = torch.zeros(2**21, device="cuda")  # 8 MiB: an L2 holds it and its copy
    target = torch.empty_like(source)
    cold = burst(partial(target.copy_, source), backend, 50)
    warm = burst(partial(target.copy_, source), Covered(detect(0).l2_bytes), 50)
    assert not warm.host_bound
    assert median(cold.times_us) > 1.1 * median(warm.times_us)


@pytest.mark.parametrize(
    "text", ["1024x1024x1024:bf16:nt", "16x4096x4096:fp16:nn", "4x1024x1024x1024"]
)
def test_torch_is_right_and_as_fast_by_both_methods(text):
    problem = GemmProblem.parse(text)
    measurer = Measurer(problem, detect(0), never)
    sustained_us = measurer.measure(TORCH, 30).time_us
    burst_us = measurer.measure(TORCH, 30, "burst").time_us
    assert 0.3 < sustained_us / burst_us < 1.5


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_torch_multiplies_float32_in_the_problems_precision(precision):
    problem = GemmProblem(2048, 2048, 2048, "fp32", "nn", precision=precision)
    before = torch.backends.cuda.matmul.fp32_precision
    time_us = Measurer(problem, detect(0), never).measure(TORCH, 30).time_us
    assert torch.backends.cuda.matmul.fp32_precision == before
    rate = detect(0).rates.tflops(problem.rate)
    assert problem.flops / time_us / 1e6 < 1.1 * rate


def test_equals_race_level():
    measurer = Measurer(PROBLEM, detect(0), never)
    race = measurer.race([TORCH, TORCH], 100)
    first, second = (item.time_us for item in race.measurements)
    assert first == pytest.approx(second, rel=0.03)
    assert race.measurements[0].sm_mhz is None or race.measurements[0].sm_mhz > 100


def never(config, problem, a, b, out):
    raise AssertionError("torch is called directly")


def test_what_a_candidate_does_to_the_device_costs_that_candidate_only(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import measure_tasks

    fine = GemmConfig()
    with closing(Worker(Bench(detect(0), measure_tasks.run), limit_s=60)) as worker:
        before = worker(Screening(PROBLEM, fine, 10)).time_us
        for config, kind in (
            (measure_tasks.POISON, "AcceleratorError"),
            (measure_tasks.HUNGRY, "OutOfMemoryError"),
        ):
            with pytest.raises(LaunchError) as caught:
                worker(Screening(PROBLEM, config, 10))
            assert caught.value.kind == kind
            assert worker(Screening(PROBLEM, fine, 10)).time_us < 2 * before
        race = worker(Racing(PROBLEM, (fine, TORCH), 50, seed=1))
        assert [item.config for item in race.measurements] == [fine, TORCH]
    with closing(Worker(Bench(detect(0), measure_tasks.run), limit_s=5)) as worker:
        worker(Screening(PROBLEM, fine, 10))
        with pytest.raises(LaunchError) as caught:
            worker(Screening(PROBLEM, measure_tasks.HANGS, 10))
        assert caught.value.kind == "Hung"
        assert worker(Screening(PROBLEM, fine, 10)).time_us < 2 * before
