"""wgmma kernels on the GPU: dtype x layout in full, the other choices pairwise.

Cases run in a process of their own (wgmma_cases.py), each under a time limit.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from autoswizzle.config import SWIZZLES, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import tail, why_illegal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="wgmma needs compute capability 9.0",
    ),
]

H200 = find_gpu("H200")

# (warp_specialize, num_warps, block_m, block_n, epilogue_subtile, most stages that fit)
TILES = [
    ("cooperative", 4, 128, 256, 4, 4),
    ("cooperative", 4, 256, 128, 4, 4),
    ("cooperative", 4, 256, 192, 6, 3),
    ("cooperative", 4, 128, 192, 3, 4),
    ("cooperative", 4, 192, 256, 4, 3),
    ("cooperative", 4, 192, 128, 2, 4),
    ("cooperative", 4, 128, 160, 5, 5),
    ("cooperative", 4, 256, 160, 5, 3),
    ("cooperative", 4, 192, 96, 3, 5),
    ("cooperative", 8, 128, 256, 4, 4),
    ("pingpong", 4, 128, 128, 2, 5),
    ("pingpong", 4, 64, 256, 4, 4),
    ("pingpong", 4, 192, 128, 4, 5),
    ("pingpong", 4, 128, 192, 6, 4),
    ("pingpong", 4, 128, 160, 5, 5),
    ("none", 4, 128, 128, 2, 5),
    ("none", 4, 64, 64, 1, 6),
    ("none", 8, 128, 256, 4, 4),
    ("none", 8, 128, 160, 5, 5),
]
# Ragged extents; one k step and fewer k steps than stages; fewer tiles than programs and more.
SHAPES = [
    (1, 8, 1), (129, 264, 65), (200, 1000, 24), (64, 128, 64), (1000, 520, 1111),
    (2049, 1544, 130), (4100, 4104, 72), (8192, 4096, 40), (300, 17000, 200),
]  # fmt: skip


def config_of(tile: tuple[str, int, int, int, int, int], **changes: object) -> GemmConfig:
    specialize, warps, block_m, block_n, subtile, stages = tile
    config = GemmConfig(
        kernel="wgmma", block_m=block_m, block_n=block_n, block_k=64, num_warps=warps,
        num_stages=stages, persistent=True, epilogue_subtile=subtile, warp_specialize=specialize,
    )  # fmt: skip
    return replace(config, **changes)


def layouts_in_full() -> list[tuple[GemmConfig, GemmProblem, str]]:
    cases = []
    for dtype, layout, tile in itertools.product(("bf16", "fp16"), ("nn", "nt", "tn", "tt"), TILES):
        problem = GemmProblem(1000, 520, 328, dtype, layout, aligned=True)
        cases.append((config_of(tile), problem, "bound"))
    for tile in TILES:
        problem = GemmProblem(1000, 520, 328, "fp32", "nt", precision="tf32", aligned=True)
        slices = {96: 3, 160: 5, 192: 6}.get(tile[3], 4)
        config = config_of(tile, block_k=32, epilogue_subtile=slices)
        stages = 2 if 192 in tile[2:4] else 3  # C is of 32 bits too
        config = replace(config, num_stages=min(config.num_stages, stages))
        cases.append((config, problem, "bound"))
    return cases


def other_choices(pairwise: Callable) -> list[tuple[GemmConfig, GemmProblem, str]]:
    """Every pair of (tile, extents, order, scheduling, stages) values at least once."""
    factors = [TILES, SHAPES, SWIZZLES, ("static", "dynamic"), (2, 3, 6)]
    rng = random.Random(0)
    cases = []
    for tile, (m, n, k), swizzle, scheduling, stages in pairwise(factors, rng):
        config = config_of(
            tile, swizzle=swizzle, scheduling=scheduling, num_stages=min(stages, tile[5])
        )
        if swizzle in ("grouped", "grouped_n", "serpentine"):
            config = replace(config, group_size=rng.choice((1, 3, 8)))
        layout = rng.choice(("nn", "nt", "tn", "tt"))
        cases.append((config, GemmProblem(m, n, k, "bf16", layout, aligned=True), "exact"))
    return cases


def shared_last_waves() -> list[tuple[GemmConfig, GemmProblem, str]]:
    """Partial last waves that stream_k makes shorter: after whole ones and alone, of few tiles and
    of most of a wave.
    """
    cases = []
    for tile in (tile for tile in TILES if tile[0] != "none"):
        config = config_of(tile, stream_k=True)
        for tiles, k, check in (
            ((14, 11), 3000, "exact"), ((5, 9), 2048, "overlap"), ((11, 8), 4160, "exact"),
            ((20, 11), 2100, "bound"),
        ):  # fmt: skip
            extents = tiles[0] * config.block_m - 5, tiles[1] * config.block_n - 8, k
            problem = GemmProblem(*extents, "bf16", "nt" if check == "exact" else "nn")
            problem = replace(problem, aligned=True)
            if tail(config, problem, H200.num_sms)[2] > 1:
                cases.append((config, problem, check))
    return cases


def swapped() -> list[tuple[GemmConfig, GemmProblem, str]]:
    """C's transpose is multiplied: every dtype and layout, extents, way of handing out tiles."""
    cases = []
    tiles = [("pingpong", 4, m, 192, slices, 4) for m, slices in ((128, 4), (64, 1), (96, 3))]
    for dtype, layout, tile in itertools.product(("bf16", "fp16"), ("nn", "nt", "tn", "tt"), tiles):
        problem = GemmProblem(1000, 520, 328, dtype, layout, aligned=True)
        cases.append((config_of(tile, swap_ab=True), problem, "bound"))
    for place, (extents, tile) in enumerate(itertools.product(SHAPES, tiles)):
        problem = GemmProblem(*extents, "bf16", ("nn", "nt", "tn", "tt")[place % 4], aligned=True)
        scheduling = ("static", "dynamic")[place % 2]
        swizzle = SWIZZLES[place % len(SWIZZLES)]
        config = config_of(tile, swap_ab=True, swizzle=swizzle, scheduling=scheduling)
        cases.append((config, problem, "exact"))
    tile = tiles[0]
    problem = GemmProblem(2000, 3000, 400, "bf16", "nt", aligned=True)
    cases.append((config_of(tile, swap_ab=True, scheduling="dynamic"), problem, "overlap"))
    for layout, check in (("nt", "exact"), ("nn", "overlap"), ("tn", "bound")):
        problem = GemmProblem(14 * 128 - 5, 11 * 192 - 8, 3000, "bf16", layout, aligned=True)
        cases.append((config_of(tile, swap_ab=True, stream_k=True), problem, check))
    return cases


def overlapping() -> list[tuple[GemmConfig, GemmProblem, str]]:
    problem = GemmProblem(2000, 3000, 400, "bf16", "nt", aligned=True)
    return [
        (config_of(tile, scheduling="dynamic", split_k=splits), problem, "overlap")
        for tile in TILES
        for splits in ((1, 3) if tile[0] == "cooperative" else (1,))
    ]


def split() -> list[tuple[GemmConfig, GemmProblem, str]]:
    cases = []
    tiles = [tile for tile in TILES if tile[0] == "cooperative"]
    for tile, splits, scheduling in itertools.product(tiles, (2, 3, 8), ("static", "dynamic")):
        config = config_of(tile, split_k=splits, scheduling=scheduling)
        for extents in ((300, 520, 1111), (2049, 1000, 8 * 64)):
            problem = GemmProblem(*extents, "bf16", "nt" if splits == 3 else "tn", aligned=True)
            cases.append((config, problem, "exact"))
        cases.append((config, GemmProblem(600, 704, 4096, "fp16", "nn", aligned=True), "bound"))
    return cases


@pytest.fixture(scope="module")
def cases(wgmma_runner: ModuleType) -> list[tuple[GemmConfig, GemmProblem, str]]:
    return [
        *layouts_in_full(), *other_choices(wgmma_runner.pairwise), *split(), *shared_last_waves(),
        *overlapping(), *swapped(),
    ]  # fmt: skip


def test_every_case_is_legal(cases) -> None:
    assert [why_illegal(config, problem, H200) for config, problem, _ in cases] == [None] * len(
        cases
    )


def test_every_case_computes_the_product(wgmma_runner, cases) -> None:
    wgmma_runner.check(cases)
