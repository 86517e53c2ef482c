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
from dataclasses import astuple, dataclass
from typing import Any

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

    def scaled(self, whole: int, part: int) -> "Traffic":
        """That of whole tiles, of which this is the traffic of part."""
        return Traffic(*(value * whole // part for value in astuple(self)))


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
    """What replay of launch.waves() counts, in closed form; of more tiles than are followed, their
    share of what it counts of those. capacity: bytes the cache holds.
    """
    found = _traffic(Distances(launch.reuse(), launch.kinds()), launch.itemsize, capacity)
    return found.scaled(launch.tiles, launch.followed)


def traffic_of(waves: Iterable[Wave], operands: Operands, capacity: int) -> Traffic:
    """What replay counts for any work, in closed form over its aligned pieces (work.cut)."""
    return _traffic(Distances(*cut(waves, operands)), operands.itemsize, capacity)


def _traffic(distances: "Distances", itemsize: int, capacity: int) -> Traffic:
    require_positive("capacity", capacity)
    elements = capacity // itemsize
    return distances.traffic(
        distances.carried_within(elements), distances.repeated_within(elements), itemsize
    )


class Distances:
    """Reuse distances of a run, in elements, over segments of k steps in which they are linear.

    lengths: k steps of each segment, (segments,). own: extent times depth of each carried touch's
    tile, (carried, segments), 0 where it has no step. first, slope: the distance of a carried touch
    in step s of a segment is first + s * slope, own included, besides what lies between its two
    touches in one step (same).
    """

    def __init__(self, reuse: Reuse, kinds: Kinds) -> None:
        self.reuse = reuse
        self.lengths, self._depths = kinds.segments()
        self.own = self._sizes(reuse.carried)
        late, early = reuse.late @ self._depths, reuse.early @ self._depths
        late_total, early_total = late * self.lengths, early * self.lengths
        later = late_total.sum(axis=1, keepdims=True) - late_total.cumsum(axis=1)
        earlier = early_total.cumsum(axis=1) - early_total
        self.first = later + earlier + (self.lengths - 1) * late + self.own
        self.slope = early - late
        self._most_same = late + early

    @property
    def same(self) -> Ints:
        """Distance of each carried touch within its step, (carried, segments)."""
        return self.reuse.between_carried @ self._depths

    def carried_within(self, capacity: int) -> Ints:
        """Steps in which each carried touch is within capacity elements, (carried, segments)."""
        room = capacity - self.first
        # What lies between two touches in one step hardly ever matters; if it can, it is counted.
        most = self._steps(room)
        if np.array_equal(most, self._steps(room - self._most_same)):
            return most
        return self._steps(room - self.same)

    def repeated_within(self, capacity: int) -> Ints:
        """Steps in which each touch repeated in its wave is within capacity elements."""
        own = self._sizes(self.reuse.repeated)
        steps = np.where(own > 0, self.lengths, 0)
        if ((self.reuse.of_wave @ self._depths) <= capacity).all():
            return steps
        return np.where(self.reuse.between_repeated @ self._depths + own <= capacity, steps, 0)

    def whole(self, touches: Ints) -> Ints:
        """Elements of each touch's tile over all its k steps, (touches,)."""
        sizes: Ints = self._sizes(touches) @ self.lengths
        return sizes

    def traffic(self, carried: NDArray[Any], repeated: NDArray[Any], itemsize: int) -> Traffic:
        """Totals from the steps in which each carried and each repeated touch hits."""
        hits = carried.sum() + repeated.sum()
        elements = (carried * self.own).sum()
        elements += (repeated * self._sizes(self.reuse.repeated)).sum()
        touched = (self._depths > 0) @ self.lengths
        depths = self._depths @ self.lengths
        misses = touched[self.reuse.kind].sum() - hits
        missed = depths[self.reuse.kind] @ self.reuse.extent - elements
        return Traffic(
            round(hits), round(misses), round(elements) * itemsize, round(missed) * itemsize
        )

    def _steps(self, room: Ints) -> Ints:
        return np.where(self.own > 0, _steps_below(room, self.slope, self.lengths), 0)

    def _sizes(self, touches: Ints) -> Ints:
        """Elements of each touch's tile in each segment, (touches, segments)."""
        sizes = self._depths[self.reuse.kind[touches]] * self.reuse.extent[touches, None]
        return np.asarray(sizes)


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
