"""Tile orders on the device: program index -> output tile, as simulator.order on the host.

morton, hilbert and xor visit the enclosing power-of-two square of side 2**LOG_SIDE and skip the
tiles that the grid does not have. They are unranked from the top: at each of LOG_SIDE levels, the
tiles present in a quadrant are a product of two clamped extents, so that skipping costs nothing.
Plain @triton.jit functions on scalars, callable from Triton and Gluon kernels alike.
"""

import triton
import triton.language as tl

SQUARE_SWIZZLES = ("morton", "xor", "hilbert")  # those that read LOG_SIDE


def log_side(swizzle: str, grid_m: int, grid_n: int) -> int:
    """LOG_SIDE of tile_at: log2 of the enclosing square's side; 0 where the order has no square."""
    return (max(grid_m, grid_n) - 1).bit_length() if swizzle in SQUARE_SWIZZLES else 0


@triton.jit
def tile_at(
    index, grid_m, grid_n, SWIZZLE: tl.constexpr, GROUP_SIZE: tl.constexpr, LOG_SIDE: tl.constexpr
):
    """(tile_m, tile_n) of the index-th visited tile of a grid_m x grid_n grid."""
    if SWIZZLE == "row":
        tile_m, tile_n = index // grid_n, index % grid_n
    elif SWIZZLE == "column":
        tile_m, tile_n = index % grid_m, index // grid_m
    elif SWIZZLE == "grouped":
        tile_m, tile_n, _ = _grouped(index, grid_m, grid_n, GROUP_SIZE)
    elif SWIZZLE == "grouped_n":
        tile_n, tile_m, _ = _grouped(index, grid_n, grid_m, GROUP_SIZE)
    elif SWIZZLE == "serpentine":
        tile_m, tile_n, group = _grouped(index, grid_m, grid_n, GROUP_SIZE)
        if group % 2 == 1:
            tile_n = grid_n - 1 - tile_n
    elif SWIZZLE == "morton":
        tile_m, tile_n = _morton(index, grid_m, grid_n, LOG_SIDE)
    elif SWIZZLE == "hilbert":
        tile_m, tile_n = _hilbert(index, grid_m, grid_n, LOG_SIDE)
    else:
        tl.static_assert(SWIZZLE == "xor")
        tile_m, tile_n = _xor(index, grid_m, LOG_SIDE)
    return tile_m, tile_n


@triton.jit
def _grouped(index, grid_m, grid_n, GROUP_SIZE: tl.constexpr):
    """(tile_m, tile_n, group): groups of GROUP_SIZE rows, down the rows first; the last group's
    actual height divides it.
    """
    height = min(GROUP_SIZE, grid_m)  # also keeps height * grid_n within the grid, hence int32
    group = index // (height * grid_n)
    first = group * height
    actual = min(grid_m - first, height)
    inner = index - first * grid_n
    return first + inner % actual, inner // actual, group


@triton.jit
def _present(first, side, extent):
    """How many of first, ..., first + side - 1 lie below extent."""
    return min(max(extent - first, 0), side)


@triton.jit
def _morton(index, grid_m, grid_n, LOG_SIDE: tl.constexpr):
    """Z-order whose even index bits are m: halves along n, then along m."""
    tile_m = index * 0
    tile_n = index * 0
    for level in tl.static_range(LOG_SIDE):
        half = 1 << (LOG_SIDE - 1 - level)
        height = _present(tile_m, 2 * half, grid_m)
        width = _present(tile_n, half, grid_n)
        if index >= height * width:
            index -= height * width
            tile_n += half
            width = _present(tile_n, half, grid_n)
        upper = _present(tile_m, half, grid_m) * width
        if index >= upper:
            index -= upper
            tile_m += half
    return tile_m, tile_n


@triton.jit
def _hilbert(index, grid_m, grid_n, LOG_SIDE: tl.constexpr):
    """Hilbert's curve, x = m, y = n. swap and flip say how the current square's curve is turned:
    its quadrants are (0,0), (0,1), (1,1), (1,0); the first is swapped, the last swapped and flipped.
    """
    tile_m = index * 0
    tile_n = index * 0
    swap = index * 0
    flip = index * 0
    for level in tl.static_range(LOG_SIDE):
        half = 1 << (LOG_SIDE - 1 - level)
        upper = _present(tile_m, half, grid_m)
        lower = _present(tile_m + half, half, grid_m)
        left = _present(tile_n, half, grid_n)
        right = _present(tile_n + half, half, grid_n)
        quadrant = index * 0
        for step in tl.static_range(3):
            quadrant_m, quadrant_n = _hilbert_quadrant(step, swap, flip)
            present = (lower if quadrant_m == 1 else upper) * (right if quadrant_n == 1 else left)
            if quadrant == step and index >= present:
                index -= present
                quadrant += 1
        quadrant_m, quadrant_n = _hilbert_quadrant(quadrant, swap, flip)
        tile_m += half * quadrant_m
        tile_n += half * quadrant_n
        outer = (quadrant == 0) | (quadrant == 3)
        swap = swap ^ outer
        flip = flip ^ (quadrant == 3)
    return tile_m, tile_n


@triton.jit
def _hilbert_quadrant(step, swap, flip):
    """(m, n) half that the step-th quadrant of a turned curve lies in."""
    across = step // 2
    along = (step ^ across) % 2
    quadrant_m = (along if swap == 1 else across) ^ flip
    quadrant_n = (across if swap == 1 else along) ^ flip
    return quadrant_m, quadrant_n


@triton.jit
def _xor(index, grid_m, LOG_SIDE: tl.constexpr):
    """Column n holds the rows x ^ n in order of x: the r-th x whose row the grid has."""
    tile_n = index // grid_m
    rank = index % grid_m
    tile_m = index * 0
    for level in tl.static_range(LOG_SIDE):
        half = 1 << (LOG_SIDE - 1 - level)
        bit = (tile_n // half) % 2
        present = _present(tile_m + half * bit, half, grid_m)
        if rank >= present:
            rank -= present
            bit = 1 - bit
        tile_m += half * bit
    return tile_m, tile_n
