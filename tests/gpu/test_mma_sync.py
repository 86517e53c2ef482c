"""mma_sync kernels on the GPU: every shared-memory layout, storage order, tile order; exact."""

import itertools
from dataclasses import replace

import pytest
import torch

from autoswizzle.config import SMEM_SWIZZLES, SWIZZLES, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import TORCH_NAMES, GemmProblem
from autoswizzle.space import why_illegal

pytestmark = pytest.mark.gpu

H200 = find_gpu("H200")
SMALL = GemmConfig(kernel="mma_sync", block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=3)
ARTICLE = GemmConfig(
    kernel="mma_sync", block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3
)
NAN = float("nan")


def operand(rows, cols, transposed, dtype, padding):
    """Integers in -2..2; between the lines, padding elements that are NaN."""
    lines, inner = (cols, rows) if transposed else (rows, cols)
    stored = torch.full((lines, inner + padding), NAN, dtype=dtype, device="cuda")[:, :inner]
    stored.copy_(torch.randint(-2, 3, stored.shape, device="cuda"))
    return stored.t() if transposed else stored


def check(config, problem):
    """Sums of small integers are exact in float32, rounded once; nothing is written beside them."""
    from autoswizzle.kernels import run

    assert why_illegal(config, problem, H200) is None
    torch.manual_seed(0)
    dtype = getattr(torch, TORCH_NAMES[problem.dtype])
    m, n, k = problem.m, problem.n, problem.k
    a = operand(m, k, problem.layout[0] == "t", dtype, 8)
    b = operand(k, n, problem.layout[1] == "t", dtype, 16)
    whole = torch.full((m + 2, n + 8), NAN, dtype=dtype, device="cuda")
    out = whole[1:-1, :n]
    run(config, problem, a, b, out)
    assert torch.equal(out, (a.double() @ b.double()).to(dtype)), f"{config} on {problem}"
    out.fill_(NAN)
    assert whole.isnan().all(), f"{config} on {problem} wrote outside its output"


@pytest.mark.parametrize("smem_a", SMEM_SWIZZLES)
@pytest.mark.parametrize("smem_b", SMEM_SWIZZLES)
def test_every_combination_of_layouts(smem_a, smem_b):
    problem = GemmProblem(200, 264, 104, "bf16", "nt")
    for smem_c in SMEM_SWIZZLES:
        check(replace(SMALL, smem_a=smem_a, smem_b=smem_b, smem_c=smem_c), problem)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_storage_orders(layout, dtype):
    for kind, base in itertools.product(SMEM_SWIZZLES, (SMALL, ARTICLE)):
        config = replace(base, smem_a=kind, smem_b=kind, smem_c=kind)
        check(config, GemmProblem(264, 200, 136, dtype, layout))


@pytest.mark.parametrize(
    ("m", "n", "k", "layout"),
    [
        (1, 8, 8, "nn"), (37, 8, 2048, "nt"), (520, 1032, 13, "tn"), (128, 128, 64, "nn"),
        (1000, 24, 72, "nt"), (24, 1000, 40, "tt"), (777, 4104, 200, "nn"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_ragged_extents_and_few_steps(m, n, k, layout, stages):
    for kind in ("128", "padded"):
        config = replace(SMALL, num_stages=stages, smem_a=kind, smem_b=kind)
        check(config, GemmProblem(m, n, k, "bf16", layout, aligned=True))


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_tile_orders(swizzle):
    for m, n in ((64 * 7, 64 * 5), (64 * 3, 64 * 17), (64, 64)):
        check(replace(SMALL, swizzle=swizzle), GemmProblem(m, n, 64, "bf16", "nn"))
    if swizzle in ("grouped", "grouped_n", "serpentine"):
        check(replace(SMALL, swizzle=swizzle, group_size=3), GemmProblem(64 * 7, 64 * 5, 64))


@pytest.mark.parametrize(
    "changed",
    [
        {"num_warps": 1, "block_m": 16, "block_n": 16, "block_k": 16},
        {"num_warps": 4, "block_m": 16, "block_n": 128, "block_k": 64},
        {"num_warps": 8, "block_m": 256, "block_n": 32, "block_k": 16},
        {"num_warps": 16, "block_m": 128, "block_n": 256, "block_k": 32},
        {"max_registers": 128},
        {"max_registers": 96, "smem_a": "64", "smem_c": "padded"},
    ],
)
def test_tiles_warps_and_register_caps(changed):
    check(replace(ARTICLE, smem_b="128", **changed), GemmProblem(520, 648, 264, "bf16", "nn"))


def test_offsets_beyond_32_bits():
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of free GPU memory")
    check(replace(ARTICLE, smem_a="128"), GemmProblem(2**19 + 8, 64, 4104, "bf16", "nn"))
    check(replace(ARTICLE, smem_b="128"), GemmProblem(64, 2**19 + 8, 4104, "bf16", "nt"))
    check(ARTICLE, GemmProblem(2**16 + 8, 2**15 + 64, 16, "bf16", "nn"))
