"""Reuse of operand tiles over waves of work, independent of K, k step and capacity.

Sizes here are extents, elements along m or n: a tile's bytes are its extent times the depth of its
k step times the element size, which lru.py puts in. Extents are summed by kind: tiles of one kind
have the same k steps.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_DENSE_WAVES = 1024  # up to here a wave x wave table costs less than counting range by range


class Reuse:
    """The touches of a run in one k step, and what lies between two touches of a tile.

    A touch is new in its wave (cold: its tile's first; carried: its tile was last touched in an
    earlier wave) or repeated there. A piece of work touches two tiles, in the order of the pieces.
    """

    def __init__(self, wave: Ints, tiles: Ints, extents: Ints, kinds: Ints) -> None:
        """Wave of each piece of work, ascending, shape (pieces,); its tile ids, (pieces, 2).

        extents, kinds: of each tile id.
        """
        touched = tiles.ravel()
        self.wave = np.repeat(wave, 2)
        self.waves = int(wave[-1]) + 1
        self._previous = previous_touch(touched)
        self._last_wave = np.where(self._previous < 0, -1, self.wave[self._previous])
        self._num_kinds = int(kinds.max()) + 1
        self.kind, self.extent = kinds[touched], extents[touched]
        new = self._last_wave < self.wave
        self.new = np.flatnonzero(new)
        self.carried = np.flatnonzero(new & (self._last_wave >= 0))
        self.repeated = np.flatnonzero(~new)

    @property
    def late(self) -> Ints:
        """Of each carried touch: extent of waves v..w-1, v its tile's last wave and w its own."""
        return self._extents[0]

    @property
    def early(self) -> Ints:
        """Of each carried touch: extent of waves v+1..w. Shape (carried, kinds), like late."""
        return self._extents[1]

    @property
    def of_wave(self) -> Ints:
        """Extent of each wave, shape (waves, kinds)."""
        return self._extents[2]

    @property
    def waves_apart(self) -> Ints:
        """Of each carried touch: waves from its tile's last touch to it."""
        apart: Ints = self.wave[self.carried] - self._last_wave[self.carried]
        return apart

    def pieces_apart(self, touches: Ints) -> Ints:
        """Of each of these touches: pieces of work from its tile's last touch to it."""
        return touches // 2 - self._previous[touches] // 2

    @cached_property
    def _extents(self) -> list[Ints]:
        last, own = self._last_wave[self.carried], self.wave[self.carried]
        waves = np.arange(self.waves)
        found = self._extent_of(
            np.concatenate((last, last + 1, waves)), np.concatenate((own - 1, own, waves))
        )
        return np.split(found, (len(own), 2 * len(own)))

    @cached_property
    def between_carried(self) -> Ints:
        """Of each carried touch: extent of the other tiles touched since its tile's last touch.

        Those are the tiles new in their wave before the touch and not touched in an earlier wave
        after that last touch, less those that were done by then. Shape (carried, kinds).
        """
        since = self._previous[self.carried]
        ended = np.ones(len(self.wave), bool)
        ended[self._previous[self.repeated]] = False
        done = np.cumsum(self._by_kind(np.arange(len(ended))) * ended[:, None], axis=0)
        before = np.searchsorted(self.new, self.carried)
        seen = sum_below(self._previous[self.new], self._by_kind(self.new), before, since)
        between: Ints = seen - done[since]
        return between

    @cached_property
    def between_repeated(self) -> Ints:
        """The same of each repeated touch, (repeated, kinds)."""
        since = self._previous[self.repeated]
        extents = self._by_kind(np.arange(len(self.wave)))
        seen = sum_below(self._previous, extents, self.repeated, since)
        return seen - np.cumsum(extents, axis=0)[since]

    def _extent_of(self, first: Ints, last: Ints) -> Ints:
        """Extent of the distinct tiles that waves first..last touch in one step, per kind."""
        if self.waves <= _DENSE_WAVES:
            table = self._wave_table()
            within: Ints = table[last + 1, first] - table[first, first]
            return within
        waves, extents = self.wave[self.new], self._by_kind(self.new)
        before = np.concatenate((np.zeros_like(extents[:1]), np.cumsum(extents, axis=0)))
        stop = np.searchsorted(waves, last + 1)
        touched = sum_below(self._last_wave[self.new], extents, stop, first)
        return touched - before[np.searchsorted(waves, first)]

    def _wave_table(self) -> Ints:
        """[x, v]: extent of touches in waves below x whose tile was last touched before wave v."""
        shape = (self.waves, self.waves + 1, self._num_kinds)
        place = self.wave[self.new] * shape[1] + self._last_wave[self.new] + 1
        counted = np.bincount(
            place * self._num_kinds + self.kind[self.new],
            self.extent[self.new],
            minlength=math.prod(shape),
        )
        by_last_wave = counted.astype(np.int64).reshape(shape).cumsum(axis=1)
        return np.concatenate((np.zeros_like(by_last_wave[:1]), by_last_wave.cumsum(axis=0)))

    def _by_kind(self, touches: Ints) -> Ints:
        """Extent of each touch in the column of its kind, (touches, kinds)."""
        extents = np.zeros((len(touches), self._num_kinds), np.int64)
        extents[np.arange(len(touches)), self.kind[touches]] = self.extent[touches]
        return extents


def previous_touch(tiles: Ints) -> Ints:
    """Where the tile of each touch was touched before, -1 where it was not; shape (touches,)."""
    keys = tiles.astype(np.uint16) if tiles.max() < 2**16 else tiles  # 16 bits sort by radix
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(tiles[order[1:]] == tiles[order[:-1]])
    previous = np.full(len(tiles), -1)
    previous[order[again + 1]] = order[again]
    return previous


def sum_below(values: Ints, weights: Ints, stop: Ints, bound: Ints) -> Ints:
    """Of each query: the sum of weights[i] over i < stop with values[i] < bound.

    values (n,) >= -1, weights (n, columns), queries (q,); returns (q, columns). A wavelet matrix,
    walked bit by bit as it is built: O((n + q) log n) for values below n.
    """
    total = np.zeros((len(stop), weights.shape[1]), np.int64)
    values, bound = values + 1, bound + 1
    start = np.zeros_like(stop)
    highest = int(max(values.max(), bound.max(initial=0)))
    for bit in reversed(range(highest.bit_length())):
        low = (values >> bit & 1) == 0
        order = np.concatenate((np.flatnonzero(low), np.flatnonzero(~low)))
        low_before = np.concatenate(([0], np.cumsum(low)))
        lows = low_before[-1]
        values, weights = values[order], weights[order]
        summed = np.concatenate((np.zeros_like(weights[:1]), np.cumsum(weights, axis=0)))
        take = (bound >> bit & 1) == 1  # all that are low in this bit are below the bound
        low_start, low_stop = low_before[start], low_before[stop]
        total += np.where(take[:, None], summed[low_stop] - summed[low_start], 0)
        start = np.where(take, lows + start - low_start, low_start)
        stop = np.where(take, lows + stop - low_stop, low_stop)
    return total
