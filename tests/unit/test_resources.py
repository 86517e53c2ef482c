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

COMPILED = json.loads((Path(__file__).parents[1] / "data" / "pointer_resources.json").read_text())
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


@pytest.mark.parametrize(
    ("fields", "shared_bytes", "num_warps"),
    [
        (("cooperative", 128, 256, 4, 8, 4), 213_172, 12),
        (("cooperative", 256, 128, 4, 8, 2), 229_556, 12),
        (("pingpong", 128, 128, 5, 4, 2), 196_872, 12),
        (("none", 128, 256, 4, 8, 4), 213_024, 8),
    ],
)
def test_wgmma_kernels_take_what_was_compiled(fields, shared_bytes, num_warps):
    """Compiled with triton 3.6.0: 168 registers where warps are specialised, one block an SM."""
    specialize, block_m, block_n, stages, warps, subtile = fields
    config = GemmConfig(
        "wgmma", block_m, block_n, 64, warps, stages, persistent=True,
        warp_specialize=specialize, epilogue_subtile=subtile,
    )  # fmt: skip
    resources = estimate(config, SQUARE, H200)
    assert (resources.shared_bytes, resources.num_warps) == (shared_bytes, num_warps)
    assert resources.registers in (160, 168)
    assert resident_blocks(resources, H200) == 1


@pytest.mark.parametrize(("stages", "subtile", "shared"), [(3, 1, 213_016), (4, 2, 229_408)])
def test_persistent_tma_kernels_take_what_was_compiled(stages, subtile, shared):
    config = GemmConfig("tma", 128, 256, 64, 8, stages, persistent=True, epilogue_subtile=subtile)
    assert estimate(config, SQUARE, H200).shared_bytes == shared


def compiled_cases():
    for row in COMPILED["rows"]:
        gpu = find_gpu(row["gpu"])
        config, problem = GemmConfig.from_dict(row["config"]), GemmProblem.parse(row["problem"])
        compiled = Resources(row["registers"], row["shared_bytes"], row["num_warps"])
        yield gpu, config, problem, compiled, row["wgmma"]


def test_pointer_estimates_match_compiled_kernels():
    """Shared memory nearly always, residency mostly: registers are a fit."""
    shared, residency = [], []
    for gpu, config, problem, compiled, wgmma in compiled_cases():
        estimated = estimate(config, problem, gpu)
        assert uses_wgmma(config, problem, gpu) == wgmma, config
        shared.append(estimated.shared_bytes == compiled.shared_bytes)
        residency.append(resident_blocks(estimated, gpu) == resident_blocks(compiled, gpu))
    assert len(shared) > 200
    assert sum(shared) / len(shared) >= 0.95
    assert sum(residency) / len(residency) >= 0.8


def test_a_register_cap_spills():
    config = GemmConfig(block_m=128, block_n=128, num_warps=4, max_registers=128)
    resources = estimate(config, SQUARE, H200)
    assert resources.registers == 128
    assert resources.spill_bytes > 0


def test_torch_has_no_resources():
    with pytest.raises(ConfigError, match=r"kernel must be one of pointer, .*, got 'torch'"):
        estimate(TORCH, SQUARE, H200)
