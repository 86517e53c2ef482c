"""The gemv family: where it is legal, what compilers make of it, what its time is."""

import re
from dataclasses import replace

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import predict, shortlist
from autoswizzle.space import branches, candidates, why_illegal

H200 = find_gpu("H200")
ROW = GemmProblem(1, 4096, 4096, "bf16", "nt")
GEMV = GemmConfig("gemv", block_m=1, block_n=4, block_k=1024, num_warps=4, swizzle="row")
SPREAD = [
    (ROW, {}),
    (replace(ROW, layout="nn"), {"block_n": 64, "block_k": 64}),
    (GemmProblem(2, 4096, 4096, "fp16", "nt"), {"block_m": 2, "block_k": 512, "num_warps": 2}),
    (GemmProblem(3, 4096, 4096, "fp32", "nt"), {"block_m": 4, "block_n": 2, "block_k": 512}),
    (replace(ROW, m=4), {"block_m": 4, "block_n": 2, "num_warps": 8}),
]


@pytest.mark.parametrize(
    ("changes", "m", "reason"),
    [
        ({}, 5, "gemv needs m <= 4, got 5"),
        ({}, 2, "gemv needs block_m 2 for m 2, got 1"),
        ({"block_m": 4}, 1, "gemv needs block_m 1 for m 1, got 4"),
        ({"block_n": 3}, 1, "block_n must be a power of two in 1..4096, got 3"),
        ({"block_k": 8192}, 1, "block_k must be a power of two in 1..4096, got 8192"),
        ({"num_warps": 3}, 1, "num_warps must be 1, 2, 4, 8 or 16, got 3"),
        ({"block_k": 8, "block_n": 512}, 1, "gemv needs b in runs of >= 32 bytes, got 16"),
        ({"num_warps": 1}, 1, "gemv needs 8 to 64 sums a thread, got 128"),
        ({"block_n": 1, "num_warps": 8}, 1, "gemv needs 8 to 64 sums a thread, got 4"),
        ({"swizzle": "column"}, 1, "swizzle must be row for gemv"),
        ({"num_stages": 2}, 1, "gemv does not use num_stages, got 2"),
        ({"persistent": True}, 1, "gemv does not use persistent, got True"),
    ],
)
def test_what_is_illegal_has_a_reason(changes, m, reason):
    found = why_illegal(replace(GEMV, **changes), replace(ROW, m=m), H200)
    assert found is not None
    assert found.startswith(reason)


def test_only_problems_of_few_rows_have_it_in_their_space():
    assert "gemv" in branches(replace(ROW, m=4), H200)
    assert set(branches(replace(ROW, m=4), H200)) - set(branches(replace(ROW, m=5), H200)) == {
        "gemv"
    }
    for layout, m in (("nt", 1), ("nn", 3), ("tt", 4)):
        problem = replace(ROW, layout=layout, m=m)
        mine = {"gemv": branches(problem, H200)["gemv"]}
        found = list(candidates(problem, H200, mine))
        assert len(found) == len(set(found)) > 10
        assert {config.block_m for config in found} == {1 << (m - 1).bit_length()}


@pytest.mark.kernel
def test_the_code_loads_16_bytes_at_once_and_spills_nothing(few_rows, target):
    for problem, changes in SPREAD:
        resources, ptx = few_rows.code(replace(GEMV, **changes), problem, target)
        allowed = 4 if target.capability == 100 else 0  # a register, ptxas 13.4
        assert resources.spill_bytes <= allowed
        assert re.search(r"ld\.global\.(?:L\S+\.)?v4\.b32", ptx)
        assert "fma.rn.f32" in ptx
        assert not re.search(r"mma\.|cp\.async", ptx)


@pytest.mark.kernel
def test_estimated_resources_are_near_the_compiled_ones(few_rows):
    for problem, changes in SPREAD:
        found, real = few_rows.shared_bytes(replace(GEMV, **changes), problem, H200)
        assert abs(found - real) <= 4096


def test_its_time_is_that_of_reading_b():
    least_us = 4096 * 4096 * 2 / (H200.dram_gbs * 1e3)
    found = predict(ROW, GEMV, H200)
    assert least_us < found.time_us < 2 * least_us
    assert found.dram_read_bytes == pytest.approx(4096 * 4097 * 2, rel=0.01)


def test_it_is_among_the_first_to_try_for_one_row_and_never_alone():
    for problem in (ROW, replace(ROW, n=128256), replace(ROW, layout="nn")):
        kernels = [item.config.kernel for item in shortlist(problem, H200, 16)]
        assert {"gemv", "pointer", "wgmma"} <= set(kernels), kernels
