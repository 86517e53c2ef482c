"""Host tile orders: bijections on every grid, published tables, naive oracles for the curves."""

import random

import numpy as np
import pytest

from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES
from autoswizzle.errors import ConfigError, ProblemError
from autoswizzle.simulator.order import first_tiles, tile_order

CURVES = ("morton", "xor", "hilbert")
SMALL = [(rows, columns) for rows in range(1, 41) for columns in range(1, 41)]
_random = random.Random(20261129)
LARGE = [(_random.randint(1, 300), _random.randint(1, 300)) for _ in range(200)]
N12 = [(5, 7, 3), (1, 9, 8), (3, 3, 8), (10, 4, 4), (5, 3, 3)]


def is_bijection(order, grid_m, grid_n):
    assert order.shape == (grid_m * grid_n, 2)
    assert order.dtype == np.int32
    m, n = order[:, 0].astype(np.int64), order[:, 1].astype(np.int64)
    inside = (m >= 0) & (m < grid_m) & (n >= 0) & (n < grid_n)
    return bool(inside.all()) and (np.bincount(m * grid_n + n) == 1).all()


def id_grid(swizzle, group_size=8, grid_m=8, grid_n=8):
    table = np.full((grid_m, grid_n), -1)
    for program, (m, n) in enumerate(tile_order(swizzle, grid_m, grid_n, group_size)):
        table[m, n] = program
    return table.tolist()


def morton_tile(program, side):
    m = n = 0
    for bit in range(side.bit_length()):
        m |= (program >> 2 * bit & 1) << bit
        n |= (program >> 2 * bit + 1 & 1) << bit
    return m, n


def xor_tile(program, side):
    x, y = program % side, program // side
    return x ^ y, y


def hilbert_tile(program, side):
    """The d2xy loop of the literature."""
    x = y = 0
    scale = 1
    while scale < side:
        rx = 1 & (program // 2)
        ry = 1 & (program ^ rx)
        if ry == 0:
            if rx == 1:
                x, y = scale - 1 - x, scale - 1 - y
            x, y = y, x
        x += scale * rx
        y += scale * ry
        program //= 4
        scale *= 2
    return x, y


CURVE_TILES = {"morton": morton_tile, "xor": xor_tile, "hilbert": hilbert_tile}


def walk(swizzle, side):
    """Every tile of the enclosing square, one by one."""
    return np.array([CURVE_TILES[swizzle](program, side) for program in range(side * side)])


def skip_absent(square, grid_m, grid_n):
    return square[(square[:, 0] < grid_m) & (square[:, 1] < grid_n)]


def side_of(grid_m, grid_n):
    side = 1
    while side < max(grid_m, grid_n):
        side *= 2
    return side


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_bijection_on_every_small_and_random_large_grid(swizzle):
    sizes = range(1, 17) if swizzle in GROUPED_SWIZZLES else (8,)
    for grid_m, grid_n in SMALL + LARGE[:: 8 if swizzle in GROUPED_SWIZZLES else 1]:
        for size in sizes:
            order = tile_order(swizzle, grid_m, grid_n, size)
            assert is_bijection(order, grid_m, grid_n), (grid_m, grid_n, size)


@pytest.mark.parametrize("swizzle", GROUPED_SWIZZLES)
def test_bijection_of_grouped_orders_on_large_grids(swizzle):
    for index, (grid_m, grid_n) in enumerate(LARGE):
        size = index % 16 + 1
        assert is_bijection(tile_order(swizzle, grid_m, grid_n, size), grid_m, grid_n)


@pytest.mark.parametrize("swizzle", CURVES)
def test_curves_are_the_enclosing_square_with_absent_tiles_skipped(swizzle):
    squares = {side: walk(swizzle, side) for side in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
    for grid_m, grid_n in SMALL + LARGE:
        expected = skip_absent(squares[side_of(grid_m, grid_n)], grid_m, grid_n)
        assert np.array_equal(tile_order(swizzle, grid_m, grid_n), expected), (grid_m, grid_n)


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_the_first_tiles_are_those_of_the_whole_order(swizzle):
    draw = random.Random(7)
    for grid_m, grid_n in [(1, 90), (90, 1), *draw.sample(SMALL, 60), *LARGE[:20]]:
        whole, size = tile_order(swizzle, grid_m, grid_n, 3), grid_m * grid_n
        for count in (1, draw.randint(1, size), size):
            first = first_tiles(swizzle, grid_m, grid_n, 3, count)
            assert np.array_equal(first, whole[:count]), (grid_m, grid_n, count)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("grid_m", "grid_n"), [(2**26, 2**27), (2**27, 3), (3, 2**27)])
def test_the_first_tiles_of_a_grid_that_no_memory_holds(swizzle, grid_m, grid_n):
    found = {tuple(tile) for tile in first_tiles(swizzle, grid_m, grid_n, 8, 4096).tolist()}
    assert len(found) == 4096
    assert min(found) == (0, 0)


@pytest.mark.parametrize(
    ("swizzle", "group_size", "row", "ids"),
    [
        ("row", 8, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("row", 8, 1, [8, 9, 10, 11, 12, 13, 14, 15]),
        ("column", 8, 0, [0, 8, 16, 24, 32, 40, 48, 56]),
        ("column", 8, 1, [1, 9, 17, 25, 33, 41, 49, 57]),
        ("grouped", 4, 0, [0, 4, 8, 12, 16, 20, 24, 28]),
        ("grouped", 4, 1, [1, 5, 9, 13, 17, 21, 25, 29]),
        ("grouped", 4, 4, [32, 36, 40, 44, 48, 52, 56, 60]),
        ("morton", 8, 0, [0, 2, 8, 10, 32, 34, 40, 42]),
        ("morton", 8, 1, [1, 3, 9, 11, 33, 35, 41, 43]),
        ("xor", 8, 0, [0, 9, 18, 27, 36, 45, 54, 63]),
        ("xor", 8, 1, [1, 8, 19, 26, 37, 44, 55, 62]),
        ("hilbert", 8, 0, [0, 1, 14, 15, 16, 19, 20, 21]),
        ("grouped_n", 4, 0, [0, 1, 2, 3, 32, 33, 34, 35]),
        ("serpentine", 4, 4, [60, 56, 52, 48, 44, 40, 36, 32]),
    ],
)
def test_published_tables(swizzle, group_size, row, ids):
    assert id_grid(swizzle, group_size)[row] == ids


def test_last_group_has_its_actual_height():
    assert tile_order("grouped", 3, 2, 2).tolist() == [
        [0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [2, 1],
    ]  # fmt: skip
    assert tile_order("serpentine", 3, 2, 2).tolist()[4:] == [[2, 1], [2, 0]]


def test_grid_lower_than_the_group_is_one_group():
    assert np.array_equal(tile_order("grouped", 3, 5, 8), tile_order("column", 3, 5))
    assert np.array_equal(tile_order("grouped_n", 5, 3, 8), tile_order("row", 5, 3))


@pytest.mark.parametrize(("grid_m", "grid_n", "group_size"), N12)
def test_tail_groups_walk_down_the_columns_from_their_first_row(grid_m, grid_n, group_size):
    for swizzle in SWIZZLES:
        assert is_bijection(tile_order(swizzle, grid_m, grid_n, group_size), grid_m, grid_n)
    tail = grid_m % group_size
    expected = [[grid_m - tail + i % tail, i // tail] for i in range(tail * grid_n)] if tail else []
    assert tile_order("grouped", grid_m, grid_n, group_size).tolist()[-len(expected) :] == expected


def test_grouped_n_is_the_transpose_of_grouped():
    for grid_m, grid_n, group_size in N12:
        transposed = tile_order("grouped", grid_n, grid_m, group_size)[:, ::-1]
        assert np.array_equal(tile_order("grouped_n", grid_m, grid_n, group_size), transposed)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        (("zigzag", 2, 2, 1), ConfigError, "swizzle must be one of row, .*, got 'zigzag'"),
        (("row", 0, 2, 1), ProblemError, "grid_m must be .*, got 0"),
        (("row", 2, -1, 1), ProblemError, "grid_n must be .*, got -1"),
        (("row", 2, 2.0, 1), ProblemError, "grid_n must be .*, got 2.0"),
        (("grouped", 2, 2, 0), ConfigError, "group_size must be .*, got 0"),
        (("grouped", 2, 2, True), ConfigError, "group_size must be .*, got True"),
    ],
)
def test_illegal_arguments_are_named(arguments, error, name):
    with pytest.raises(error, match=name):
        tile_order(*arguments)
