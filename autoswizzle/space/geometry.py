"""The geometry of a configuration: its grid, what of a tile is multiplied at once and by whom."""

import math

from autoswizzle.config import GemmConfig
from autoswizzle.problem import GemmProblem

# Tiles of the last wave, and the SMs that share them: 1/8 to 4/5 of a wave.
TAIL_SHARES = tuple(
    (tiles, parts)
    for tiles in range(1, 5)
    for parts in range(tiles + 1, 9)
    if math.gcd(tiles, parts) == 1
)
ADDED_STEPS = 4  # k steps as long as writing or adding a tile's partial sums takes (about 4 us)


def grid(config: GemmConfig, problem: GemmProblem) -> tuple[int, int]:
    """Tiles along m and along n: a cluster's are one, as it takes them together."""
    rows, columns = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    return -(-problem.m // rows), -(-problem.n // columns)


def cluster_size(config: GemmConfig) -> int:
    """Blocks of a cluster, which is one program."""
    return config.cluster_m * config.cluster_n


def multiplied(config: GemmConfig) -> tuple[int, int]:
    """Rows and columns of a tile as wgmma multiplies it: of swap_ab, the tile's transpose."""
    tile = config.block_m, config.block_n
    return tile[::-1] if config.swap_ab else tile


def pieces(config: GemmConfig) -> tuple[int, ...]:
    """Powers of two that the columns of a wgmma tile are made of, the wider first: the products of
    a k step. Three consumers have registers for 128 columns at once.
    """
    _, columns = multiplied(config)
    first = min(128 if consumers(config) == 3 else 256, 1 << (columns.bit_length() - 1))
    return (first,) if first == columns else (first, columns - first)


def consumers(config: GemmConfig) -> int:
    """Groups of num_warps warps that multiply in a wgmma kernel, sharing a tile or by turns."""
    if config.warp_specialize == "cooperative" and config.num_warps == 4:
        return 3 if config.block_m == 192 else 2
    return 2 if config.warp_specialize == "pingpong" else 1


def row_strips(config: GemmConfig) -> int:
    """Strips of 64 rows that a consumer multiplies one by one where tiles are taken by turns; 1
    elsewhere.
    """
    rows, _ = multiplied(config)
    return rows // 64 if config.warp_specialize == "pingpong" else 1


def tail(config: GemmConfig, problem: GemmProblem, num_sms: int) -> tuple[int, int, int]:
    """How stream_k divides the tiles: (tiles of whole waves, then how many among how many SMs).

    Every few tiles of the last, partial wave are shared by a few SMs more, each with an equal part
    of their k steps: the same parts in every group, so that the groups still meet in the L2. The
    choice is the one whose longest part and partial sums take the fewest k steps; (tiles, 1, 1)
    where sharing saves nothing.
    """
    grid_m, grid_n = grid(config, problem)
    rest = grid_m * grid_n % num_sms
    steps = -(-problem.k // config.block_k)

    def cost(shared: tuple[int, int]) -> int:
        tiles, parts = shared
        return -(-tiles * steps // parts) + ADDED_STEPS * -(-parts // tiles)

    fits = [
        (tiles, parts)
        for tiles, parts in TAIL_SHARES
        if -(-rest // tiles) * parts <= num_sms and parts <= tiles * steps
    ]
    best = min(fits, key=cost, default=(1, 1))
    if rest == 0 or cost(best) >= steps:
        return grid_m * grid_n, 1, 1
    return grid_m * grid_n - rest, *best
