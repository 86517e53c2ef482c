"""The work of a GEMM as the cache sees it: waves of programs, each walking tiles in k steps."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autoswizzle.errors import ArgumentError
from autoswizzle.simulator.order import first_tiles, tile_order
from autoswizzle.simulator.reuse import Reuse

Ints = NDArray[np.int64]

_KEPT_ITEMS = 2**15  # an analysis takes 120 bytes an item, and 64 are kept: 250 MB at most
# Items that are followed, in half a GB at most. The others are taken to be like them, as if each
# part of so many began with an empty cache: it reads what that holds once too often, 30 bytes an
# item.
_FOLLOWED_ITEMS = 2**20


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work: output tile (row, column) over k steps first..stop-1."""

    row: int
    column: int
    first: int
    stop: int


Program = Sequence[Item]  # worked off one after the other
Wave = Sequence[Program]  # side by side in lockstep; the next wave starts when all are done


@dataclass(frozen=True, slots=True)
class Operands:
    """How A and B are cut: elements of each tile row and tile column, K, k step, element bytes.

    Tiles at an edge have their true extent.
    """

    row_extents: tuple[int, ...]
    column_extents: tuple[int, ...]
    k: int
    block_k: int
    itemsize: int

    def __post_init__(self) -> None:
        for name in ("k", "block_k", "itemsize"):
            require_positive(name, getattr(self, name))
        for name in ("row_extents", "column_extents"):
            extents = getattr(self, name)
            if not extents or min(extents) < 1:
                raise ArgumentError(f"{name} must be extents of at least 1, got {extents!r}")

    @property
    def steps(self) -> int:
        """How many k steps a whole tile takes."""
        return -(-self.k // self.block_k)

    def depth(self, step: int) -> int:
        """Elements along k of one step."""
        return min(self.block_k, self.k - step * self.block_k)


@dataclass(frozen=True, slots=True)
class Kinds:
    """The k steps of each kind of tile: how many, and elements along k of the last one."""

    steps: tuple[int, ...]
    last_depth: tuple[int, ...]
    block_k: int

    @classmethod
    def of_parts(cls, k: int, block_k: int, bounds: Sequence[int]) -> tuple["Kinds", Ints]:
        """The kinds of K cut into parts of k steps bounds[i]..bounds[i + 1] - 1, and each part's.

        Parts of equal length are one kind; the last one has what is left of K.
        """
        parts = [(stop - first, block_k) for first, stop in pairwise(bounds)]
        parts[-1] = parts[-1][0], k - (bounds[-1] - 1) * block_k
        kinds = list(dict.fromkeys(parts))
        steps, last_depth = zip(*kinds, strict=True)
        return cls(steps, last_depth, block_k), np.array([kinds.index(part) for part in parts])

    def segments(self) -> tuple[Ints, Ints]:
        """Runs of steps in which no kind changes: their lengths, and each kind's depth in them.

        Shapes (segments,) and (kinds, segments); elements along k, 0 where the kind has no step.
        """
        kinds = list(zip(self.steps, self.last_depth, strict=True))
        shorter = {steps - 1 for steps, last in kinds if last < self.block_k}
        ends = sorted({0, *self.steps} | shorter)
        lengths = np.diff(ends)
        depths = [
            [self.block_k if end < steps else last if end == steps else 0 for end in ends[1:]]
            for steps, last in kinds
        ]
        return lengths, np.array(depths)


@dataclass(frozen=True, slots=True)
class Launch:
    """A GEMM launch in waves of `concurrency` work items.

    Items are tiles in the order `swizzle`, each in the split_k parts that its k steps are cut into,
    as even as whole steps allow; parts of a tile are neighbours, entries of a batch slowest, as the
    kernels hand them out. Persistent programs, program p owning items p, p + P, ..., form the same
    waves with concurrency P. stages: k steps whose operands a program holds or loads at once; with
    persistent, it tells the model "l2" how programs drift apart (1: not at all), and nothing else.
    """

    m: int
    n: int
    k: int
    block_m: int
    block_n: int
    block_k: int
    itemsize: int
    swizzle: str
    group_size: int
    concurrency: int
    batch: int = 1
    split_k: int = 1
    stages: int = 1
    persistent: bool = True

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name not in ("swizzle", "persistent"):
                require_positive(name, getattr(self, name))

    @property
    def bounds(self) -> tuple[int, ...]:
        """First k step of each part, and the number of steps."""
        steps = _ceil(self.k, self.block_k)
        return tuple(steps * part // self.split_k for part in range(self.split_k + 1))

    def operands(self) -> Operands:
        """The operand tiles; row b * grid_m + m belongs to batch entry b."""
        rows = self.batch * _extents(self.m, self.block_m)
        columns = self.batch * _extents(self.n, self.block_n)
        return Operands(rows, columns, self.k, self.block_k, self.itemsize)

    def waves(self) -> Iterator[Wave]:
        """The work item by item, as the plain replay walks it."""
        grid_m, grid_n = _ceil(self.m, self.block_m), _ceil(self.n, self.block_n)
        order = tile_order(self.swizzle, grid_m, grid_n, self.group_size).tolist()
        items = [
            Item(b * grid_m + m, b * grid_n + n, first, stop)
            for b in range(self.batch)
            for m, n in order
            for first, stop in pairwise(self.bounds)
        ]
        for first in range(0, len(items), self.concurrency):
            yield [[item] for item in items[first : first + self.concurrency]]

    def kinds(self) -> Kinds:
        """The k steps of its operand tiles."""
        return Kinds.of_parts(self.k, self.block_k, self.bounds)[0]

    @property
    def tiles(self) -> int:
        """Output tiles of all batch entries."""
        return self.batch * _ceil(self.m, self.block_m) * _ceil(self.n, self.block_n)

    @property
    def followed(self) -> int:
        """The first tiles, which reuse() looks at: all, unless they are more than memory is for."""
        return min(self.tiles, max(1, _FOLLOWED_ITEMS // self.split_k))

    def reuse(self) -> Reuse:
        """The reuse analysis of the tiles followed, kept for launches that differ in K, k step or
        element only.
        """
        kinds = Kinds.of_parts(self.k, self.block_k, self.bounds)[1]
        small = self.tiles * self.split_k <= _KEPT_ITEMS
        analyse = _launch_reuse if small else _launch_reuse.__wrapped__
        return analyse(
            (self.m, self.block_m), (self.n, self.block_n), self.swizzle, self.group_size,
            self.concurrency, self.followed, tuple(kinds.tolist()),
        )  # fmt: skip


@lru_cache(maxsize=64)
def _launch_reuse(
    rows: tuple[int, int],
    columns: tuple[int, int],
    swizzle: str,
    group_size: int,
    concurrency: int,
    followed: int,
    kinds: tuple[int, ...],
) -> Reuse:
    """kinds: of each part that K is cut into."""
    whole = _ceil(*rows), _ceil(*columns)
    entries = _ceil(followed, math.prod(whole))
    parts, slabs = len(kinds), entries * len(kinds)
    in_entry = min(followed, math.prod(whole))
    order = first_tiles(swizzle, *whole, group_size, in_entry).astype(np.int64)
    grid = order.max(axis=0) + 1
    # Operand tiles are numbered (batch entry, part, row or column), columns after all rows.
    slab = np.arange(slabs).reshape(entries, 1, parts, 1)
    tiles = (slab * grid + order[:, None]).reshape(-1, 2)[: followed * parts]
    return Reuse(
        np.arange(len(tiles)) // concurrency, tiles + np.array((0, slabs * grid[0])),
        np.concatenate(
            [
                np.tile(_extents(min(total, block * int(count)), block), slabs)
                for (total, block), count in zip((rows, columns), grid, strict=True)
            ]
        ),
        np.concatenate([_by_tile(kinds * entries, count) for count in grid]),
    )  # fmt: skip


def _by_tile(kinds: Sequence[int] | Ints, tiles: int) -> Ints:
    """The kind of each operand tile, from that of each part."""
    return np.repeat(np.asarray(kinds, np.int64), tiles)


def cut(waves: Iterable[Wave], operands: Operands) -> tuple[Reuse, Kinds]:
    """Any work, cut into pieces that are aligned: all start together and share whole k ranges.

    The piece is the longest number of k steps that divides every start, and every stop but those at
    the end of K; the cost grows with the number of pieces.
    """
    waves = [[list(program) for program in wave] for wave in waves]
    if not any(map(any, waves)):
        raise ArgumentError(f"waves must hold at least one item, got {waves!r}")
    steps = operands.steps
    edges = {0}
    for program in (program for wave in waves for program in wave):
        for position, item in enumerate(program):
            ends_run = item.stop == steps and position == len(program) - 1
            edges |= {item.first, 0 if ends_run else item.stop}
    part = math.gcd(*edges) or steps
    kinds, kind_of = Kinds.of_parts(operands.k, operands.block_k, (*range(0, steps, part), steps))
    parts = len(kind_of)
    rows, columns = len(operands.row_extents), len(operands.column_extents)
    pieces = [
        (number, place, at * rows + item.row, parts * rows + at * columns + item.column)
        for number, wave in enumerate(waves)
        for program in wave
        for place, (item, at) in enumerate(
            (item, at)
            for item in program
            for at in range(item.first // part, _ceil(item.stop, part))
        )
    ]
    pieces.sort(key=lambda piece: piece[:2])  # stable: programs keep their order
    table = np.array(pieces, np.int64).reshape(-1, 4)
    wave = np.unique(table[:, :2], axis=0, return_inverse=True)[1].reshape(-1)
    sizes = np.concatenate(
        (np.tile(operands.row_extents, parts), np.tile(operands.column_extents, parts))
    )
    of_tile = np.concatenate([_by_tile(kind_of, count) for count in (rows, columns)])
    return Reuse(wave, table[:, 2:], sizes, of_tile), kinds


def require_positive(name: str, value: object) -> None:
    """Raise ArgumentError unless value is an integer of at least 1."""
    if type(value) is not int or value < 1:
        raise ArgumentError(f"{name} must be an integer of at least 1, got {value!r}")


def _extents(total: int, block: int) -> tuple[int, ...]:
    whole, rest = divmod(total, block)
    return (block,) * whole + ((rest,) if rest else ())


def _ceil(total: int, block: int) -> int:
    return -(-total // block)
