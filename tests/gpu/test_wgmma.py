"""wgmma kernels on the GPU: dtype x layout in full, the other choices pairwise.

Cases run in batches, each in a process of its own with a time limit (wgmma_cases.py).
"""

import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoswizzle.config import SWIZZLES, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import why_illegal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="wgmma needs compute capability 9.0",
    ),
]

H200 = find_gpu("H200")
BATCH = 24  # cases a process runs
STARTUP_S, CASE_S = 120, 10  # time limit of a batch: imports and compiling, then each case

# (warp_specialize, num_warps, block_m, block_n, epilogue_subtile, most stages that fit)
TILES = [
    ("cooperative", 4, 128, 256, 4, 4),
    ("cooperative", 4, 256, 128, 4, 4),
    ("cooperative", 4, 256, 192, 6, 3),
    ("cooperative", 4, 128, 192, 3, 4),
    ("cooperative", 8, 128, 256, 4, 4),
    ("pingpong", 4, 128, 128, 2, 5),
    ("pingpong", 4, 64, 256, 4, 4),
    ("pingpong", 4, 128, 192, 6, 4),
    ("none", 4, 128, 128, 2, 5),
    ("none", 4, 64, 64, 1, 6),
    ("none", 8, 128, 256, 4, 4),
]
# Ragged extents; one k step and fewer k steps than stages; fewer tiles than programs and more.
SHAPES = [
    (1, 1, 1), (129, 257, 65), (200, 1000, 24), (64, 128, 64), (1000, 520, 1111),
    (2049, 1537, 130), (4100, 4100, 72), (8192, 4096, 40), (300, 17000, 200),
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
        config = config_of(tile, block_k=32, epilogue_subtile=6 if tile[3] == 192 else 4)
        cases.append((replace(config, num_stages=min(config.num_stages, 3)), problem, "bound"))
    return cases


def pairwise() -> list[tuple[GemmConfig, GemmProblem, str]]:
    """Every pair of (tile, extents, order, scheduling, stages) values at least once."""
    factors = [TILES, SHAPES, SWIZZLES, ("static", "dynamic"), (2, 3, 6)]
    rng = random.Random(0)
    wanted = {
        (i, x, j, y)
        for (i, xs), (j, ys) in itertools.combinations(enumerate(factors), 2)
        for x, y in itertools.product(xs, ys)
    }
    cases = []
    while wanted:
        first = min(wanted, key=str)
        rows = []
        for _ in range(50):
            row = [rng.choice(values) for values in factors]
            row[first[0]], row[first[2]] = first[1], first[3]
            covered = {(i, x, j, y) for (i, x), (j, y) in itertools.combinations(enumerate(row), 2)}
            rows.append((len(covered & wanted), row, covered))
        _, (tile, (m, n, k), swizzle, scheduling, stages), covered = max(
            rows, key=lambda row: row[0]
        )
        wanted -= covered
        config = config_of(
            tile, swizzle=swizzle, scheduling=scheduling, num_stages=min(stages, tile[5])
        )
        if swizzle in ("grouped", "grouped_n", "serpentine"):
            config = replace(config, group_size=rng.choice((1, 3, 8)))
        layout = rng.choice(("nn", "nt", "tn", "tt"))
        cases.append((config, GemmProblem(m, n, k, "bf16", layout, aligned=True), "exact"))
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
        cases.append((config, GemmProblem(600, 700, 4096, "fp16", "nn", aligned=True), "bound"))
    return cases


CASES = [*layouts_in_full(), *pairwise(), *split(), *overlapping()]


def test_every_case_is_legal() -> None:
    assert [why_illegal(config, problem, H200) for config, problem, _ in CASES] == [None] * len(
        CASES
    )


@pytest.mark.parametrize("start", range(0, len(CASES), BATCH))
def test_batch(start: int) -> None:
    cases = CASES[start : start + BATCH]
    described = [
        {"config": config.to_dict(), "problem": problem.to_dict(), "check": check}
        for config, problem, check in cases
    ]
    limit = STARTUP_S + CASE_S * len(cases)
    command = [sys.executable, str(Path(__file__).with_name("wgmma_cases.py"))]
    try:
        done = subprocess.run(
            command, input=json.dumps(described), capture_output=True, text=True, timeout=limit,
            check=False,
        )  # fmt: skip
        lines, ending = done.stdout, f"exit {done.returncode}: {done.stderr[-500:]}"
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        lines = output.decode() if isinstance(output, bytes) else output
        ending = f"no end after {limit} s"
    results = dict.fromkeys(range(len(cases)), ending)
    for line in lines.splitlines():
        result = json.loads(line)
        if "error" in result:
            results[result["case"]] = result["error"]
    failed = {
        f"{cases[index][0]} on {cases[index][1]}": why for index, why in results.items() if why
    }
    assert not failed
