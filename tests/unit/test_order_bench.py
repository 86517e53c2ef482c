"""Tile orders side by side: which are predicted, checked and timed."""

from contextlib import nullcontext

import pytest
import torch

from autoswizzle import order_bench
from autoswizzle.config import SWIZZLES, GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.hardware import find_gpu
from autoswizzle.order_bench import bench_orders, predict_orders
from autoswizzle.problem import GemmProblem
from autoswizzle.search import measure
from autoswizzle.search.measure import Measurement
from autoswizzle.simulator.resources import Resources

H200 = find_gpu("H200")
PROBLEM = GemmProblem(8192, 8192, 8192, "fp16")


@pytest.fixture
def compiled(monkeypatch):
    """Two blocks of 128 registers and 48 KiB an SM."""
    monkeypatch.setattr(
        order_bench.kernels, "compile_for", lambda *_: Resources(254, 49_152, 4), raising=False
    )


def test_every_order_and_group_size_is_predicted_once(compiled):
    found = predict_orders(PROBLEM, GemmConfig(), H200, group_sizes=(1, 8))
    shown = [(item.config.swizzle, item.config.group_size) for item in found]
    assert len(shown) == len(set(shown)) == 5 + 3 * 2
    assert {swizzle for swizzle, _ in shown} == set(SWIZZLES)
    assert {item.resident for item in found} == {264}
    rates = {
        name: round(100 * item.l2_hit_rate, 2) for name, item in zip(shown, found, strict=True)
    }
    assert rates["row", 8] == 86.55  # as the counters' file has it
    assert rates["grouped", 8] == 91.5


def test_an_illegal_base_is_named(compiled):
    with pytest.raises(ConfigError, match="block_m must be a power of two"):
        predict_orders(PROBLEM, GemmConfig(block_m=96), H200)


def test_a_kernel_of_one_order_is_timed_in_that_one(compiled):
    base = GemmConfig("gemv", 1, 16, 256, swizzle="row")
    [found] = predict_orders(GemmProblem(1, 4096, 4096), base, H200)
    assert found.config == base


def test_every_product_is_checked_before_the_first_is_timed(compiled, monkeypatch):
    seen = []

    class Measurer:
        def __init__(self, problem, gpu, run, *, device):
            assert (problem, gpu, device) == (PROBLEM, H200, "cuda:1")

        def measure(self, config, budget_ms, method):
            seen.append((config.swizzle, budget_ms, method))
            return Measurement(config, 1000.0, 990.0, 1010.0, method)

    monkeypatch.setattr(measure, "Measurer", Measurer)
    monkeypatch.setattr(order_bench, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    rows = bench_orders(
        PROBLEM, GemmConfig(), warmup_ms=5, rep_ms=50, swizzles=("row", "xor"), device=1, gpu=H200
    )
    assert seen == [
        ("row", 5, "burst"), ("xor", 5, "burst"), ("row", 50, "burst"), ("xor", 50, "burst"),
    ]  # fmt: skip
    assert rows[0].tflops == pytest.approx(2 * 8192**3 / 1e9)
    assert rows[1].to_dict()["measurement"]["time_us"] == 1000.0
