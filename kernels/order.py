"""Tile orders on the device: program index -> output tile, as simulator.order on the host.

morton, hilbert and xor visit the enclosing power-of-two square of side 2**LOG_SIDE and skip the
tiles that the grid does not have. They are unranked from the top: at each of LOG_SIDE levels, the
tiles present in a quadrant are a product of two clamped extents, so that skipping costs nothing.
Plain @triton.jit functions, callable from Triton and Gluon kernels alike; without branches, so that
index may be a scalar or a block.
"""

import triton
import triton.language as tl

SQUARE_SWIZZLES = ("morton", "xor", "hilbert")  # those that read LOG_SIDE


def log_side(swizzle: str, grid_m: int, grid_n: int) -> int:
    """LOG_SIDE of tile_at: log2 of the enclosing square's side; 0 where the order has no square."""
    return (max(grid_m, grid_n) - 1).bit_length() if swizzle in SQUARE_SWIZZLES else 0


@triton.jit
def tile_at(index, grid_m, grid_n, SWIZZLE: tl.constexpr, group_size, LOG_SIDE: tl.constexpr):
    """(tile_m, tile_n) of the index-th visited tile of a grid_m x grid_n grid."""
    if SWIZZLE == "row":
        tile_m, tile_n = index // grid_n, index % grid_n
    elif SWIZZLE == "column":
        tile_m, tile_n = index % grid_m, index // grid_m
    elif SWIZZLE == "grouped":
        tile_m, tile_n, _ = _grouped(index, grid_m, grid_n, group_size)
    elif SWIZZLE == "grouped_n":
        tile_n, tile_m, _ = _grouped(index, grid_n, grid_m, group_size)
    elif SWIZZLE == "serpentine":
        tile_m, tile_n, group = _grouped(index, grid_m, grid_n, group_size)
        tile_n = tl.where(group % 2 == 1, grid_n - 1 - tile_n, tile_n)
    elif SWIZZLE == "morton":
        tile_m, tile_n = _morton(index, grid_m, grid_n, LOG_SIDE)
    elif SWIZZLE == "hilbert":
        tile_m, tile_n = _hilbert(index, grid_m, grid_n, LOG_SIDE)
    else:
        tl.static_assert(SWIZZLE == "xor")
        tile_m, tile_n = _xor(index, grid_m, LOG_SIDE)
    return tile_m, tile_n


@triton.jit
def _grouped(index, grid_m, grid_n, group_size):
    """(tile_m, tile_n, group) of groups group_size rows high, walked down the rows first; the last
    group is divided by its actual height.
    """
    height = tl.minimum(group_size, grid_m)  # height * grid_n stays within the grid, hence int32
    group = index // (height * grid_n)
    first = group * height
    actual = tl.minimum(grid_m - first, height)
    inner = index - first * grid_n
    return first + inner % actual, inner // actual, group


@triton.jit
def _present(first, side, extent):
    """How many of first, ..., first + side - 1 lie below extent."""
    return tl.minimum(tl.maximum(extent - first, 0), side)


@triton.jit
def _morton(index, grid_m, grid_n, LOG_SIDE: tl.constexpr):
    """Z-order whose even index bits are m: a square is halved along n, then along m."""
    tile_m = index * 0
    tile_n = index * 0
    for level in tl.static_range(LOG_SIDE):
        half = 1 << (LOG_SIDE - 1 - level)
        height = _present(tile_m, 2 * half, grid_m)
        left = height * _present(tile_n, half, grid_n)
        skip = index >= left
        index -= tl.where(skip, left, 0)
        tile_n += tl.where(skip, half, 0)
        upper = _present(tile_m, half, grid_m) * _present(tile_n, half, grid_n)
        skip = index >= upper
        index -= tl.where(skip, upper, 0)
        tile_m += tl.where(skip, half, 0)
    return tile_m, tile_n


@triton.jit
def _hilbert(index, grid_m, grid_n, LOG_SIDE: tl.constexpr):
    """Hilbert's curve with x = m and y = n. Unturned, it visits the quadrants (0, 0), (0, 1),
    (1, 1), (1, 0); inside the first its axes are swapped, inside the last swapped and flipped.
    """
    tile_m = index * 0
    tile_n = index * 0
    swap = index * 0
    flip = index * 0
    for level in tl.static_range(LOG_SIDE):
        half = 1 << (LOG_SIDE - 1 - level)
        quadrant = index * 0
        for step in tl.static_range(3):
            first_m, first_n = _hilbert_quadrant(step, tile_m, tile_n, half, swap, flip)
            present = _present(first_m, half, grid_m) * _present(first_n, half, grid_n)
            skip = (quadrant == step) & (index >= present)
            index -= tl.where(skip, present, 0)
            quadrant += tl.where(skip, 1, 0)
        tile_m, tile_n = _hilbert_quadrant(quadrant, tile_m, tile_n, half, swap, flip)
        swap ^= tl.where((quadrant == 0) | (quadrant == 3), 1, 0)
        flip ^= tl.where(quadrant == 3, 1, 0)
    return tile_m, tile_n


@triton.jit
def _hilbert_quadrant(step, tile_m, tile_n, half, swap, flip):
    """Where the step-th quadrant begins in the square at (tile_m, tile_n) of a turned curve."""
    x = step // 2
    y = (step ^ x) % 2
    quadrant_m = tl.where(swap == 1, y, x) ^ flip
    quadrant_n = tl.where(swap == 1, x, y) ^ flip
    return tile_m + half * quadrant_m, tile_n + half * quadrant_n


@triton.jit
def _xor(index, grid_m, LOG_SIDE: tl.constexpr):
    """Column n holds the rows x ^ n in order of x: its rank-th x whose row the grid has."""
    tile_n = index // grid_m
    rank = index % grid_m
    tile_m = index * 0
    for level in tl.static_range(LOG_SIDE):
        half = 1 << (LOG_SIDE - 1 - level)
        bit = (tile_n // half) % 2
        present = _present(tile_m + half * bit, half, grid_m)
        skip = rank >= present
        rank -= tl.where(skip, present, 0)
        tile_m += half * tl.where(skip, 1 - bit, bit)
    return tile_m, tile_n
