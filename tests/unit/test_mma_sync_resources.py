"""Closed-form resources of mma_sync, fitted to the code of triton 3.6."""

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import estimate

pytest.importorskip("triton.experimental.gluon")
offline = pytest.importorskip("autoswizzle.kernels.offline")

H200 = find_gpu("H200")


def article(**changed):
    """The article's tile: 128 x 128 x 64 with 8 warps."""
    tile = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    return GemmConfig(kernel="mma_sync", **{**tile, **changed})


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize(
    "changed",
    [
        {"smem_a": "128", "smem_b": "64"},
        {"smem_a": "padded", "smem_b": "padded"},
        {"smem_a": "padded", "smem_b": "128", "num_stages": 4},
        {"smem_a": "128", "smem_c": "padded", "block_k": 32},
        {"block_k": 32, "num_warps": 4},
        {"block_m": 64, "block_n": 64, "num_warps": 4},
    ],
)
def test_estimated_resources_are_the_compilers(layout, changed):
    problem = GemmProblem(4096, 4096, 4096, "bf16", layout)
    config = article(**changed)
    guess = estimate(config, problem, H200)
    real = offline.compile_for(config, problem, H200)
    assert guess.shared_bytes == real.shared_bytes
    assert abs(guess.registers - real.registers) <= 0.2 * real.registers
