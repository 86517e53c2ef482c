"""Tile orders on the host: which output tile each program id computes.

A launch of grid_m x grid_n tiles numbers its programs 0, 1, ...; the order gives each its tile.
Every order is a bijection on every grid: morton, xor and hilbert walk the enclosing square whose
side is a power of two and skip the tiles the grid lacks; the last group of grouped, grouped_n and
serpentine has its actual size.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autoswizzle.config import SWIZZLES
from autoswizzle.errors import ConfigError, ProblemError, check_choice

Ints = NDArray[np.int64]


def tile_order(swizzle: str, grid_m: int, grid_n: int, group_size: int = 8) -> NDArray[np.int32]:
    """The tile (m, n) of each program id, shape (grid_m * grid_n, 2).

    group_size counts tile rows (grouped, serpentine) or tile columns (grouped_n); the other orders
    do not read it. Raises ConfigError for an unknown swizzle or a group below 1, ProblemError for
    an empty grid.
    """
    check_choice("swizzle", swizzle, SWIZZLES, ConfigError)
    for name, extent in (("grid_m", grid_m), ("grid_n", grid_n)):
        if type(extent) is not int or extent < 1:
            raise ProblemError(f"{name} must be an integer of at least 1, got {extent!r}")
    if grid_m * grid_n >= 2**31:
        raise ProblemError(f"the grid must have less than 2^31 tiles, got {grid_m}x{grid_n}")
    if type(group_size) is not int or group_size < 1:
        raise ConfigError(f"group_size must be an integer of at least 1, got {group_size!r}")
    return first_tiles(swizzle, grid_m, grid_n, group_size, grid_m * grid_n)


def first_tiles(
    swizzle: str, grid_m: int, grid_n: int, group_size: int, count: int
) -> NDArray[np.int32]:
    """The first count of tile_order, at a cost that grows with count, not with the grid."""
    if swizzle in _RANKS:
        m, n = _by_rank(swizzle, grid_m, grid_n, count)
    elif swizzle == "grouped_n":
        n, m = _grouped(grid_n, grid_m, group_size, count)
    elif swizzle == "row":
        n, m = _grouped(grid_n, grid_m, grid_n, count)
    elif swizzle == "column":
        m, n = _grouped(grid_m, grid_n, grid_m, count)
    else:
        m, n = _grouped(grid_m, grid_n, group_size, count, serpentine=swizzle == "serpentine")
    return np.stack((m, n), axis=1).astype(np.int32)


def _grouped(
    rows: int, columns: int, group_size: int, count: int, serpentine: bool = False
) -> tuple[Ints, Ints]:
    """Groups of group_size rows; in a group down the rows first, then the next column."""
    group_size = min(group_size, rows)
    ids = np.arange(count, dtype=np.int64)
    group, inside = np.divmod(ids, group_size * columns)
    first = group * group_size
    height = np.minimum(rows - first, group_size)
    column, row = np.divmod(inside, height)
    if serpentine:
        column = np.where(group % 2 == 1, columns - 1 - column, column)
    return first + row, column


def _by_rank(swizzle: str, grid_m: int, grid_n: int, count: int) -> tuple[Ints, Ints]:
    """The grid's tiles sorted by their place on the enclosing power-of-two square."""
    if swizzle == "xor":  # goes column by column, down the first one
        rows, columns = min(grid_m, count), -(-count // grid_m)
    else:  # fill the square of each power of two before they leave it
        side = 1
        while min(side, grid_m) * min(side, grid_n) < count:
            side *= 2
        rows, columns = min(side, grid_m), min(side, grid_n)
    m, n = (axis.ravel() for axis in np.mgrid[:rows, :columns])
    bits = (max(grid_m, grid_n) - 1).bit_length()
    ids = np.argsort(_RANKS[swizzle](m, n, bits))[:count]
    return m[ids], n[ids]


def _morton_rank(m: Ints, n: Ints, bits: int) -> Ints:
    rank = np.zeros_like(m)
    for bit in range(bits):
        rank |= (m >> bit & 1) << 2 * bit | (n >> bit & 1) << 2 * bit + 1
    return rank


def _xor_rank(m: Ints, n: Ints, bits: int) -> Ints:
    return (n << bits) + (m ^ n)


def _hilbert_rank(m: Ints, n: Ints, bits: int) -> Ints:
    """The distance along the curve (the xy2d loop) with x = m, y = n."""
    x, y = m.copy(), n.copy()
    rank = np.zeros_like(m)
    for bit in reversed(range(bits)):
        right, upper = x >> bit & 1, y >> bit & 1
        rank += (3 * right ^ upper) << 2 * bit
        flip = (upper == 0) & (right == 1)
        low = (1 << bit) - 1  # only the bits below matter to the quadrants still to come
        x, y = np.where(flip, low - (x & low), x & low), np.where(flip, low - (y & low), y & low)
        x, y = np.where(upper == 0, y, x), np.where(upper == 0, x, y)
    return rank


_RANKS: dict[str, Callable[[Ints, Ints, int], Ints]] = {
    "morton": _morton_rank,
    "xor": _xor_rank,
    "hilbert": _hilbert_rank,
}
