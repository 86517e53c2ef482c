"""Occupancy as the driver computes it, and closed-form resources against compiled kernels."""

import json
from pathlib import Path

import pytest

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.hardware import KIB, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import (
    Resources,
    estimate,
    resident_blocks,
    uses_wgmma,
    why_infeasible,
)

COMPILED = json.loads((Path(__file__).parents[1] / "data" / "compiled_resources.json").read_text())
H200 = find_gpu("H200")
SQUARE = GemmProblem(4096, 4096, 4096, "bf16", "nt")


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "blocks"),
    [
        (16, 0, 1, 32),  # blocks of an SM
        (32, 0, 4, 16),  # warps of an SM
        (64, 0, 8, 4),  # 2,048 registers a warp: 8 in a quarter of the SM
        (255, 0, 4, 2),  # 8,160 rounded up to 8,192 a warp: 2 in a quarter
        (168, 0, 12, 1),
        (200, 0, 2, 4),  # 6,400 a warp: 2 in a quarter, though 10 would fit in all quarters
        (128, 0, 12, 1),  # 4 warps in a quarter: 16, one block of 12
        (33, 0, 4, 12),  # 1,056 rounded up to 1,280 a warp: 12 in a quarter, 48
        (32, 113 * KIB, 4, 2),  # each block takes 1 KiB more
        (32, 113 * KIB + 1, 4, 1),
        (32, 227 * KIB, 4, 1),
        (0, 0, 32, 2),
    ],
)
def test_resident_blocks_of_an_h200(registers, shared_bytes, num_warps, blocks):
    resources = Resources(registers, shared_bytes, num_warps)
    assert why_infeasible(resources, H200) is None
    assert resident_blocks(resources, H200) == blocks


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (Resources(32, 227 * KIB + 1, 4), "shared memory of a block must be <= 232448 on H200, "),
        (Resources(256, 0, 4), "registers of a thread must be <= 255 on H200, got 256"),
        (Resources(16, 0, 33), "warps of a block must be <= 32 on H200, got 33"),
        (Resources(168, 0, 13), "registers of a block must be <= 65536 on H200, got 86016"),
    ],
)
def test_what_does_not_fit_has_a_reason(resources, reason):
    assert reason in why_infeasible(resources, H200)
    assert resident_blocks(resources, H200) == 0


def test_smaller_sms_hold_fewer_blocks():
    resources = Resources(64, 48 * KIB, 4)
    counts = {name: resident_blocks(resources, find_gpu(name)) for name in ("H200", "A100-80GB")}
    counts["L4"] = resident_blocks(resources, find_gpu("L4"))
    assert counts == {"H200": 4, "A100-80GB": 3, "L4": 2}


@pytest.mark.parametrize(("stages", "subtile", "shared"), [(3, 1, 213_016), (4, 2, 229_408)])
def test_persistent_tma_kernels_take_what_was_compiled(stages, subtile, shared):
    config = GemmConfig("tma", 128, 256, 64, 8, stages, persistent=True, epilogue_subtile=subtile)
    assert estimate(config, SQUARE, H200).shared_bytes == shared


def compiled_cases(kernel):
    for row in COMPILED["rows"]:
        config = GemmConfig.from_dict(row["config"])
        if config.kernel == kernel:
            compiled = Resources(row["registers"], row["shared_bytes"], row["num_warps"])
            gpu, problem = find_gpu(row["gpu"]), GemmProblem.parse(row["problem"])
            assert uses_wgmma(config, problem, gpu) == row["wgmma"], config
            yield gpu, compiled, estimate(config, problem, gpu)


@pytest.mark.parametrize(
    ("kernel", "cases", "slack", "shared", "residency"),
    [
        ("pointer", 200, 0, 0.95, 0.8),
        ("tma", 50, 0, 0.9, 0.9),
        ("wgmma", 50, 64, 1.0, 1.0),
    ],
)
def test_estimates_match_compiled_kernels(kernel, cases, slack, shared, residency):
    """Shared memory nearly always, to within slack bytes; residency mostly: registers are a fit."""
    found = list(compiled_cases(kernel))
    assert len(found) >= cases
    same_shared = [abs(guess.shared_bytes - real.shared_bytes) <= slack for _, real, guess in found]
    same_residency = [
        resident_blocks(guess, gpu) == resident_blocks(real, gpu) for gpu, real, guess in found
    ]
    assert sum(same_shared) / len(found) >= shared
    assert sum(same_residency) / len(found) >= residency


def test_specialised_wgmma_kernels_have_a_producer_warp_group():
    for gpu, real, guess in compiled_cases("wgmma"):
        assert guess.num_warps == real.num_warps
        assert abs(guess.registers - real.registers) <= 8
        assert (why_infeasible(guess, gpu) is None) == (why_infeasible(real, gpu) is None)


def test_a_register_cap_spills():
    config = GemmConfig(block_m=128, block_n=128, num_warps=4, max_registers=128)
    resources = estimate(config, SQUARE, H200)
    assert resources.registers == 128
    assert resources.spill_bytes > 0


def test_torch_has_no_resources():
    with pytest.raises(ConfigError, match=r"kernel must be one of pointer, .*, got 'torch'"):
        estimate(TORCH, SQUARE, H200)
