"""Tile orders on the device equal those on the host, in Triton's interpreter."""

import pytest
import torch
import triton
import triton.language as tl

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES
from autoswizzle.kernels.order import log_side, tile_at
from autoswizzle.simulator.order import tile_order

GRIDS = [(m, n) for m in range(1, 9) for n in range(1, 9)] + [
    (1, 40), (40, 1), (16, 16), (17, 15), (31, 33), (5, 64), (64, 5), (40, 37), (32, 32), (100, 3),
]  # fmt: skip
BLOCK = 2048


@triton.jit
def _visit(
    out, grids, BLOCK: tl.constexpr, SWIZZLE: tl.constexpr, GROUP: tl.constexpr, LOG: tl.constexpr
):
    case = tl.program_id(0)
    grid_m = tl.load(grids + 2 * case)
    grid_n = tl.load(grids + 2 * case + 1)
    index = tl.arange(0, BLOCK)
    tile_m, tile_n = tile_at(
        tl.minimum(index, grid_m * grid_n - 1), grid_m, grid_n, SWIZZLE, GROUP, LOG
    )
    there = index < grid_m * grid_n
    first = out + case * 2 * BLOCK
    tl.store(first + 2 * index, tile_m, mask=there)
    tl.store(first + 2 * index + 1, tile_n, mask=there)


def device_orders(swizzle, grids, group_size, log):
    out = torch.full((len(grids), BLOCK, 2), -1, dtype=torch.int32)
    _visit[(len(grids),)](
        out, torch.tensor(grids, dtype=torch.int32), BLOCK, swizzle, group_size, log
    )
    return [
        [tuple(tile) for tile in rows[: m * n].tolist()]
        for rows, (m, n) in zip(out, grids, strict=True)
    ]


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_device_order_is_the_hosts(swizzle):
    sizes = (1, 2, 3, 8, 1024) if swizzle in GROUPED_SWIZZLES else (8,)
    for size in sizes:
        by_side = {}
        for grid in GRIDS:
            by_side.setdefault(log_side(swizzle, *grid), []).append(grid)
        for log, grids in by_side.items():
            for grid, order in zip(grids, device_orders(swizzle, grids, size, log), strict=True):
                host = tile_order(swizzle, *grid, size).tolist()
                assert order == [tuple(tile) for tile in host], (grid, size)
