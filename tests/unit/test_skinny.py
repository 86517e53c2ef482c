"""The skinny family: where it is legal, its indices and masks on numpy, what compilers make of it,
what its time is.
"""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import compile_for
from autoswizzle.kernels.family import family
from autoswizzle.kernels.offline import compiled
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import predict, rank, shortlist
from autoswizzle.space import branches, candidates, why_illegal

H200 = find_gpu("H200")
FEW = GemmProblem(8, 4096, 4096, "bf16", "nt")
SKINNY = GemmConfig("skinny", block_m=8, block_n=16, block_k=512, num_warps=4, swizzle="row")
SPREAD = [
    (FEW, {}),
    (replace(FEW, m=1, k=4104), {"num_warps": 8, "block_k": 2048}),
    (replace(FEW, m=5, dtype="fp16", out_dtype="fp16"), {"block_n": 64, "block_k": 256}),
    (replace(FEW, m=9), {"block_m": 16, "block_n": 32}),
    (replace(FEW, m=16, k=4104), {"block_m": 16, "block_n": 64, "block_k": 128, "num_warps": 2}),
    (replace(FEW, m=32), {"block_m": 32, "block_n": 32, "block_k": 256}),
]


@pytest.mark.parametrize(
    ("changes", "problem", "reason"),
    [
        ({}, {"m": 33}, "skinny needs m <= 32, got 33"),
        ({}, {"m": 9}, "skinny needs block_m 16 for m 9, got 8"),
        ({"block_m": 16}, {"m": 8}, "skinny needs block_m 8 for m 8, got 16"),
        ({"block_m": 4}, {"m": 4}, "skinny needs block_m 8 for m 4, got 4"),
        ({}, {"layout": "nn"}, "skinny needs layout nt, got nn"),
        ({}, {"dtype": "fp32", "out_dtype": ""}, "skinny needs dtype in fp16, bf16, got fp32"),
        ({}, {"aligned": False}, "skinny needs operands aligned to 16 bytes"),
        ({}, {"k": 4100, "aligned": True}, "skinny needs k to be a multiple of 8, got 4100"),
        ({}, {"batch": 2}, "batch must be 1, got 2"),
        ({"block_n": 8}, {}, "skinny needs block_n to be a power of two >= 16, got 8"),
        ({"block_n": 48}, {}, "skinny needs block_n to be a power of two >= 16, got 48"),
        ({"block_k": 128}, {}, "skinny needs block_k to be a power of two >= 256, got 128"),
        ({"num_warps": 3}, {}, "skinny needs num_warps 2, 4 or 8, got 3"),
        ({"block_k": 2048}, {}, "skinny needs <= 208 registers for loads and sums, got 388"),
        ({"swizzle": "column"}, {}, "swizzle must be row for skinny"),
        ({"num_stages": 2}, {}, "skinny does not use num_stages, got 2"),
        ({"split_k": 2}, {}, "skinny does not use split_k, got 2"),
    ],
)
def test_what_is_illegal_has_a_reason(changes, problem, reason):
    found = why_illegal(replace(SKINNY, **changes), replace(FEW, **problem), H200)
    assert found is not None
    assert found.startswith(reason)


def test_no_count_of_k_leaves_32_bits():
    """The device counts k's up to the end of the last step."""
    for k, legal in ((2**31 - 512, True), (2**31 - 504, False)):
        assert (why_illegal(SKINNY, replace(FEW, n=16, k=k), H200) is None) == legal


def test_only_problems_of_few_rows_have_it_in_their_space():
    assert "skinny" in branches(replace(FEW, m=32), H200)
    assert "skinny" not in branches(replace(FEW, m=33), H200)
    assert "skinny" not in branches(replace(FEW, layout="tt"), H200)
    for m, block_m, least in ((1, 8, 18), (8, 8, 18), (13, 16, 15), (32, 32, 9)):
        problem = replace(FEW, m=m)
        found = list(candidates(problem, H200, {"skinny": branches(problem, H200)["skinny"]}))
        assert len(found) == len(set(found)) >= least
        assert {config.block_m for config in found} == {block_m}


@pytest.mark.parametrize(
    ("name", "strides"), [("a", (68, 1)), ("a", (1, 64)), ("b", (64, 1)), ("out", (32, 2))]
)
def test_strides_that_loads_cannot_follow_are_refused(name, strides):
    whole = torch.empty(64 * 200, dtype=torch.bfloat16)
    operands = {"a": whole[:512].view(8, 64), "b": whole[:1024].view(16, 64).t()}
    operands["out"] = whole[:128].view(8, 16)
    operands[name] = whole.as_strided(operands[name].shape, strides)
    problem = GemmProblem(8, 16, 64, "bf16", "nt")
    with pytest.raises(LaunchError, match=f"skinny needs {name} with unit inner stride"):
        family("skinny").call(SKINNY, problem, *operands.values())


def test_a_part_of_16_bytes_along_k_is_refused():
    operands = [torch.empty(*shape, dtype=torch.bfloat16) for shape in ((8, 64), (16, 64), (8, 16))]
    a, b, out = operands
    problem = GemmProblem(8, 16, 60, "bf16", "nt", aligned=True)
    with pytest.raises(LaunchError, match="skinny needs k to be a multiple of 8, got 60"):
        family("skinny").call(SKINNY, problem, a[:, :60], b[:, :60].t(), out)


def lines(rows, cols, padding):
    """Small integers amid NaN, in memory that ends at the last of them."""
    flat = torch.full((rows * (cols + padding) - padding,), np.nan)
    view = flat.as_strided((rows, cols), (cols + padding, 1))
    return view.copy_(torch.randint(-2, 3, (rows, cols)))


@pytest.mark.kernel
@pytest.mark.parametrize("k", [8, 64, 256, 328, 768, 1032])
@pytest.mark.parametrize(("n", "block_n"), [(1, 16), (16, 16), (19, 16), (70, 32)])
def test_products_are_exact_and_whole_on_numpy(gluon_on_numpy, n, block_n, k):
    """Layouts apart: rows and columns that wrap around, the end of k, what is stored."""
    torch.manual_seed(n + k)
    for m, num_warps in itertools.product((1, 7, 8, 13, 32), (2, 4)):
        block_m = max(8, 1 << (m - 1).bit_length())
        config = replace(SKINNY, block_m=block_m, block_n=block_n, block_k=256, num_warps=num_warps)
        problem = GemmProblem(m, n, k, "bf16", "nt", aligned=True)
        if why_illegal(config, problem, H200) is not None:
            assert (block_m, block_n, num_warps) == (32, 32, 2)
            continue
        a, b = lines(m, k, 8), lines(n, k, 16).t()
        padding = 16 - n % 8
        out = lines(m, n, padding).fill_(np.nan)
        call = family("skinny").call(config, problem, a, b, out)
        gluon_on_numpy.run(call, family("skinny"), ("_load", "_indices"))
        assert torch.equal(out, a @ b)
        assert (
            np.isnan(gluon_on_numpy.memory(out)).sum() == (m - 1) * padding
        )  # nothing else is written


@pytest.mark.kernel
def test_the_code_loads_16_bytes_at_once_and_spills_nothing(few_rows, target):
    for problem, changes in SPREAD:
        config = replace(SKINNY, **changes)
        resources, ptx = few_rows.code(config, problem, target)
        assert resources.spill_bytes == 0, config
        loads = re.findall(r"ld\.global\S*", ptx)
        b_loads = [load for load in loads if ".cg" in load]
        run = config.block_k // config.num_warps
        # before the loop and in it
        assert len(b_loads) == 2 * config.block_n * run // 256
        assert len(loads) - len(b_loads) == 2 * config.block_m * run // 256
        assert {load.removeprefix("ld.global").removeprefix(".cg") for load in loads} == {".v4.b32"}
        products = re.findall(r"mma\.sync\S*m16n8k16\S*", ptx)
        assert len(products) == 2 * config.block_n * config.block_m * run // (16 * 8 * 16)
        assert "cp.async" not in ptx
        assert "shfl" not in ptx


@pytest.mark.kernel
def test_a_k_step_is_loads_and_products_alone(machine_code):
    for problem, changes in SPREAD:
        config = replace(SKINNY, **changes)
        [loop] = machine_code.k_loops(compiled(config, problem, H200).asm["cubin"], "HMMA")
        code = "\n".join(loop)
        run = config.block_k // config.num_warps
        assert len(re.findall(r"\bLDG\S*\.128\b", code)) == code.count("LDG")
        loads = (config.block_n + config.block_m) * run // 256
        products = config.block_n * config.block_m * run // (16 * 8 * 16)
        assert (code.count("LDG"), code.count("HMMA")) == (loads, products)
        assert not re.search(r"\b(LDS|LDSM|STS|BAR|SHFL|LDL|STL|LDGSTS)\b", code), config


@pytest.mark.kernel
def test_a_step_is_loaded_while_another_is_multiplied():
    for changes in ({}, {"block_n": 32, "block_k": 256}):
        config = replace(SKINNY, **changes)
        loaded = (config.block_m + config.block_n) * config.block_k // (64 * config.num_warps)
        assert compile_for(config, FEW, H200).registers > 2 * loaded


@pytest.mark.kernel
def test_estimated_resources_are_near_the_compiled_ones(few_rows):
    for problem, changes in SPREAD:
        found, real = few_rows.shared_bytes(replace(SKINNY, **changes), problem, H200)
        assert real <= found <= real + 8192


def test_its_time_is_that_of_reading_b():
    least_us = 4096 * 4096 * 2 / (H200.dram_gbs * 1e3)
    [found] = rank(FEW, H200, 1, candidates(FEW, H200, {"skinny": branches(FEW, H200)["skinny"]}))
    assert least_us < found.time_us < 2 * least_us
    assert found.dram_read_bytes == pytest.approx(4096 * (4096 + 8) * 2, rel=0.01)
    few_warps = predict(FEW, replace(SKINNY, block_k=128, num_warps=2), H200)
    assert few_warps.time_us > found.time_us  # as it waits for memory 32 times


@pytest.mark.parametrize("m", [1, 7, 16, 32])
def test_it_is_among_the_first_to_try_for_few_rows_and_never_alone(m):
    for n, k in ((4096, 4096), (128256, 4096), (4096, 14336)):
        problem = GemmProblem(m, n, k, "bf16", "nt")
        kernels = [item.config.kernel for item in shortlist(problem, H200, 16)]
        assert {"skinny", "pointer", "wgmma"} <= set(kernels), kernels
