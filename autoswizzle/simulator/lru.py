"""The L2 cache as whole-tile LRU by bytes: the plain replay and its exact closed form.

The model: work runs in waves; inside a wave every program walks its k steps in
lockstep, and in each step each program touches A(row, step), then B(step, column). The cache holds
the most recently touched operand tiles whose bytes fit.

Closed form. A touch hits when the bytes touched since its tile's last touch, its own included, fit.
Say a tile row was last touched in wave v and is touched again in wave w, both times in every step.
Between its touches in step s lie the steps after s of wave v, whole waves, and the steps before s
of wave w. What waves v..w-1 touch counts once in each later step, what waves v+1..w touch once in
each earlier step, so the distance is linear in s:

    (steps - 1 - s) * late + s * early + same

with late and early the bytes one step of those waves touches, and same what is touched between the
two touches if there were only one step. How many steps hit is then one division, whatever K is.
Tiles with fewer steps (the last part of a split K) or a shorter last step cut the steps into a few
segments, each linear.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoswizzle.simulator.reuse import Reuse
from autoswizzle.simulator.work import Kinds, Launch, Operands, Program, Wave, cut, require_positive

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Touches of operand tiles that the cache serves (hits) and does not, and their bytes."""

    hits: int
    misses: int
    hit_bytes: int
    miss_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of the touches that hit, 0..1."""
        return self.hits / (self.hits + self.misses)


def replay(waves: Iterable[Wave], operands: Operands, capacity: int) -> Traffic:
    """The model touch by touch, at a cost that grows with K: the closed form's reference.

    capacity: bytes the cache holds. Raises ArgumentError where it is not positive.
    """
    require_positive("capacity", capacity)
    depths = [operands.depth(step) * operands.itemsize for step in range(operands.steps)]
    held: OrderedDict[tuple[bool, int, int], int] = OrderedDict()
    used = hits = misses = hit_bytes = miss_bytes = 0
    for programs in waves:
        walks = [_walk(program) for program in programs]
        for at in range(max(map(len, walks), default=0)):
            for walk in walks:
                if at >= len(walk):
                    continue
                row, column, step = walk[at]
                for tile in ((True, row, step), (False, column, step)):
                    if tile in held:
                        held.move_to_end(tile)
                        hits += 1
                        hit_bytes += held[tile]
                        continue
                    extents = operands.row_extents if tile[0] else operands.column_extents
                    held[tile] = size = extents[tile[1]] * depths[step]
                    misses += 1
                    miss_bytes += size
                    used += size
                    while used > capacity:
                        used -= held.popitem(last=False)[1]
    return Traffic(hits, misses, hit_bytes, miss_bytes)


def traffic(launch: Launch, capacity: int) -> Traffic:
    """What replay of launch.waves() counts, in closed form. capacity: bytes the cache holds."""
    require_positive("capacity", capacity)
    return _count(launch.reuse(), launch.kinds(), capacity // launch.itemsize, launch.itemsize)


def traffic_of(waves: Iterable[Wave], operands: Operands, capacity: int) -> Traffic:
    """What replay counts for any work, in closed form over its aligned pieces (work.cut)."""
    require_positive("capacity", capacity)
    reuse, kinds = cut(waves, operands)
    return _count(reuse, kinds, capacity // operands.itemsize, operands.itemsize)


def _count(reuse: Reuse, kinds: Kinds, capacity: int, itemsize: int) -> Traffic:
    """Sizes are counted in elements, capacity too."""
    lengths, depths = kinds.segments()
    steps_by_kind = (depths > 0) @ lengths  # touches of a tile, over all its steps
    elements_by_kind = depths @ lengths  # their elements along k
    hits = hit_elements = 0
    for touches, steps in (
        (reuse.carried, _carried_hits(reuse, lengths, depths, capacity)),
        (reuse.repeated, _repeated_hits(reuse, lengths, depths, capacity)),
    ):
        hits += int(steps.sum())
        along_k = (steps * depths[reuse.kind[touches]]).sum(axis=1)
        hit_elements += int(along_k @ reuse.extent[touches])
    misses = int(steps_by_kind[reuse.kind].sum()) - hits
    miss_elements = int(elements_by_kind[reuse.kind] @ reuse.extent) - hit_elements
    return Traffic(hits, misses, hit_elements * itemsize, miss_elements * itemsize)


def _repeated_hits(reuse: Reuse, lengths: Ints, depths: Ints, capacity: int) -> Ints:
    """Hits of each touch repeated in its wave, (touches, segments)."""
    own = depths[reuse.kind[reuse.repeated]]
    steps = np.where(own > 0, lengths, 0)
    if ((reuse.of_wave @ depths).max(axis=0) <= capacity).all():
        return steps
    distance = reuse.between[reuse.repeated] @ depths + own * reuse.extent[reuse.repeated, None]
    return np.where(distance <= capacity, steps, 0)


def _carried_hits(reuse: Reuse, lengths: Ints, depths: Ints, capacity: int) -> Ints:
    """Hits of each touch of a tile from an earlier wave, (touches, segments).

    In a segment of n steps, step s has the distance rest + (n-1-s) * late + s * early + same.
    """
    late, early = reuse.late @ depths, reuse.early @ depths
    late_total, early_total = late * lengths, early * lengths
    later = late_total.sum(axis=1, keepdims=True) - late_total.cumsum(axis=1)
    earlier = early_total.cumsum(axis=1) - early_total
    own = depths[reuse.kind[reuse.carried]]
    room = (
        capacity - later - earlier - (lengths - 1) * late - own * reuse.extent[reuse.carried, None]
    )

    def steps_within(same: Ints) -> Ints:
        return np.where(own > 0, _steps_below(room - same, early - late, lengths), 0)

    # What lies between two touches in one step hardly ever matters; if it can, it is counted.
    most = steps_within(np.zeros_like(late))
    if np.array_equal(most, steps_within(late + early)):
        return most
    return steps_within(reuse.between[reuse.carried] @ depths)


def _steps_below(room: Ints, slope: Ints, lengths: Ints) -> Ints:
    """How many s in 0..n-1 have s * slope <= room."""
    first = room // np.maximum(slope, 1) + 1  # a rising distance fits at first,
    last = lengths + room // np.maximum(-slope, 1)  # a falling one in the end
    level = np.where(room >= 0, lengths, 0)
    return np.clip(np.where(slope > 0, first, np.where(slope < 0, last, level)), 0, lengths)


def _walk(program: Program) -> list[tuple[int, int, int]]:
    return [
        (item.row, item.column, step) for item in program for step in range(item.first, item.stop)
    ]
