"""multicast kernels on the GPU: dtype x layout x tile in full, the other choices pairwise.

Cases run in a process of their own (wgmma_cases.py), each under a time limit.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import why_illegal
from autoswizzle.toolchain import triton_version

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif((triton_version() or (0, 0)) < (3, 9), reason="multicast needs triton 3.9"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="multicast needs compute capability 9.0",
    ),
]

H200 = find_gpu("H200")

# (warp_specialize, num_warps, block_m, block_n, epilogue_subtile, most stages that fit)
TILES = [
    ("cooperative", 4, 128, 256, 4, 4),
    ("cooperative", 4, 256, 128, 4, 4),
    ("cooperative", 4, 192, 256, 4, 3),
    ("cooperative", 4, 256, 192, 6, 3),
    ("cooperative", 4, 128, 160, 5, 5),
    ("cooperative", 4, 192, 96, 3, 5),
    ("cooperative", 4, 128, 64, 1, 6),
    ("cooperative", 8, 128, 256, 4, 4),
    ("pingpong", 4, 128, 192, 3, 4),
    ("pingpong", 4, 128, 128, 2, 5),
    ("pingpong", 4, 64, 256, 4, 4),
    ("pingpong", 4, 192, 128, 4, 5),
]
CLUSTERS = [(2, 1), (1, 2)]
# Ragged extents, with the second block of a cluster beyond the last row or column; one k step and
# fewer than stages; fewer tiles than clusters that are resident at once, and more.
SHAPES = [
    (1, 8, 1), (129, 264, 65), (200, 1000, 24), (64, 128, 64), (1000, 520, 1111),
    (2049, 1544, 130), (4100, 4104, 72), (8192, 4096, 40), (300, 17000, 200),
]  # fmt: skip

Case = tuple[GemmConfig, GemmProblem, str]


def config_of(
    tile: tuple[str, int, int, int, int, int], cluster: tuple[int, int], **changes: object
) -> GemmConfig:
    specialize, warps, block_m, block_n, subtile, stages = tile
    config = GemmConfig(
        kernel="multicast", block_m=block_m, block_n=block_n, block_k=64, num_warps=warps,
        num_stages=stages, persistent=True, epilogue_subtile=subtile, warp_specialize=specialize,
        cluster_m=cluster[0], cluster_n=cluster[1],
    )  # fmt: skip
    return replace(config, **changes)


def layouts_in_full() -> list[Case]:
    """Each layout of each tile in both clusters, one of them in each dtype."""
    cases = []
    for place, (tile, layout, dtype) in enumerate(
        itertools.product(TILES, ("nn", "nt", "tn", "tt"), ("bf16", "fp16"))
    ):
        cluster = CLUSTERS[(place + place // 2) % 2]
        problem = GemmProblem(1000, 520, 328, dtype, layout, aligned=True)
        cases.append((config_of(tile, cluster), problem, "bound"))
    return cases


def other_choices(pairwise: Callable) -> list[Case]:
    """Every pair of (tile, cluster, extents, order, stages) values at least once."""
    rng = random.Random(0)
    cases = []
    for tile, cluster, extents, swizzle, stages in pairwise(
        [TILES, CLUSTERS, SHAPES, SWIZZLES, (2, 3, 6)], rng
    ):
        config = config_of(tile, cluster, swizzle=swizzle, num_stages=min(stages, tile[5]))
        if swizzle in GROUPED_SWIZZLES:
            config = replace(config, group_size=rng.choice((1, 3, 8)))
        layout = rng.choice(("nn", "nt", "tn", "tt"))
        cases.append((config, GemmProblem(*extents, "bf16", layout, aligned=True), "exact"))
    return cases


def swapped() -> list[Case]:
    """C's transpose is multiplied: both clusters, every layout, extents and order."""
    cases = []
    tiles = [("pingpong", 4, m, 192, slices, 5) for m, slices in ((128, 4), (64, 1))]
    for place, (cluster, tile, layout, dtype) in enumerate(
        itertools.product(CLUSTERS, tiles, ("nn", "nt", "tn", "tt"), ("bf16", "fp16"))
    ):
        problem = GemmProblem(1000, 520, 328, dtype, layout, aligned=True)
        cases.append((config_of(tile, cluster, swap_ab=True), problem, "bound"))
        problem = GemmProblem(*SHAPES[place % len(SHAPES)], "bf16", layout, aligned=True)
        swizzle = SWIZZLES[place % len(SWIZZLES)]
        config = config_of(tile, cluster, swap_ab=True, swizzle=swizzle, num_stages=2 + place % 4)
        cases.append((config, problem, "exact"))
    problem = GemmProblem(2000, 3000, 400, "bf16", "nt", aligned=True)
    return [*cases, (config_of(tiles[0], CLUSTERS[0], swap_ab=True), problem, "overlap")]


def overlapping() -> list[Case]:
    problem = GemmProblem(2000, 3000, 400, "bf16", "nt", aligned=True)
    return [
        (config_of(tile, CLUSTERS[place % 2]), problem, "overlap")
        for place, tile in enumerate(TILES)
    ]


def wide_steps_and_padded() -> list[Case]:
    wide = GemmProblem(1000, 520, 1111, "bf16", "tn", aligned=True)
    odd = GemmProblem(1001, 517, 333, "bf16", "nt")
    tile = TILES[0]
    return [
        (config, problem, "exact")
        for cluster in CLUSTERS
        for config, problem in (
            (config_of(tile, cluster, block_k=128, num_stages=2), wide),
            (config_of(tile, cluster, padded=True), odd),
        )
    ]


@pytest.fixture(scope="module")
def cases(wgmma_runner: ModuleType) -> list[Case]:
    pairwise = wgmma_runner.pairwise
    return [
        *layouts_in_full(), *other_choices(pairwise), *overlapping(), *wide_steps_and_padded(),
        *swapped(),
    ]  # fmt: skip


def test_every_case_is_legal(cases) -> None:
    reasons = {str(config): why_illegal(config, problem, H200) for config, problem, _ in cases}
    assert {config: reason for config, reason in reasons.items() if reason} == {}


def test_every_case_computes_the_product(wgmma_runner, cases) -> None:
    wgmma_runner.check(cases)
