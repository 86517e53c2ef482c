"""Tile orders on the device equal their definition, in Triton's interpreter."""

import pytest
import torch
import triton
import triton.language as tl

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES
from autoswizzle.kernels.order import log_side, tile_at

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


def naive_order(swizzle, grid_m, grid_n, group_size):
    """The definition, by brute force: no formula in common with the device's."""
    tiles = [(m, n) for m in range(grid_m) for n in range(grid_n)]
    side = 1
    while side < max(grid_m, grid_n):
        side *= 2
    if swizzle == "row":
        return tiles
    if swizzle == "column":
        return sorted(tiles, key=lambda tile: (tile[1], tile[0]))
    if swizzle == "grouped":
        return sorted(tiles, key=lambda tile: (tile[0] // group_size, tile[1], tile[0]))
    if swizzle == "grouped_n":
        return sorted(tiles, key=lambda tile: (tile[1] // group_size, tile[0], tile[1]))
    if swizzle == "serpentine":
        return sorted(
            tiles,
            key=lambda tile: (
                tile[0] // group_size,
                -tile[1] if tile[0] // group_size % 2 else tile[1],
                tile[0],
            ),
        )
    square = {"morton": _morton, "xor": _xor, "hilbert": _hilbert}[swizzle]
    visited = [square(index, side) for index in range(side * side)]
    return [(m, n) for m, n in visited if m < grid_m and n < grid_n]


def _morton(index, side):
    bits = [index >> place & 1 for place in range(2 * side.bit_length())]
    m = sum(bit << place for place, bit in enumerate(bits[0::2]))
    return m, sum(bit << place for place, bit in enumerate(bits[1::2]))


def _xor(index, side):
    x, y = index % side, index // side
    return x ^ y, y


def _hilbert(index, side):
    x = y = 0
    scale, rest = 1, index
    while scale < side:
        turn_x = 1 & (rest // 2)
        turn_y = 1 & (rest ^ turn_x)
        if turn_y == 0:
            if turn_x == 1:
                x, y = scale - 1 - x, scale - 1 - y
            x, y = y, x
        x, y = x + scale * turn_x, y + scale * turn_y
        rest //= 4
        scale *= 2
    return x, y


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_device_order_is_the_definition(swizzle):
    sizes = (1, 2, 3, 8, 1024) if swizzle in GROUPED_SWIZZLES else (8,)
    for size in sizes:
        by_side = {}
        for grid in GRIDS:
            by_side.setdefault(log_side(swizzle, *grid), []).append(grid)
        for log, grids in by_side.items():
            for grid, order in zip(
                grids, device_orders(swizzle, grids, size, log), strict=True
            ):
                assert order == naive_order(swizzle, *grid, size), (grid, size)
