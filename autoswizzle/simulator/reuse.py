"""Reuse of operand tiles over waves of work, independent of K, k step and capacity.

Sizes here are extents, elements along m or n: a tile's bytes are its extent times the depth of its
k step times the element size, which lru.py puts in. Extents are kept apart by kind: tiles of one
kind have the same k steps.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_DENSE_WAVES = 1024  # up to here a wave x wave table costs less than counting range by range


class Reuse:
    """The touches of a run and what lies between two touches of a tile, all per one k step.

    Touches are numbered in order; a touch is cold (its tile's first), carried (its tile was last
    touched in an earlier wave) or repeated (in the same wave).
    """

    def __init__(self, wave: Ints, tiles: Ints, extents: Ints, kinds: Ints) -> None:
        """Wave of each piece of work, ascending, shape (pieces,); its two tile ids, (pieces, 2);
        extent and kind of each tile id.
        """
        touched = tiles.ravel()
        self._wave = np.repeat(wave, 2)
        self._previous = previous_touch(touched)
        self.kind, self.extent = kinds[touched], extents[touched]
        last_wave = np.where(self._previous < 0, -1, self._wave[self._previous])
        self._last_wave = last_wave
        self.cold = np.flatnonzero(last_wave < 0)
        self.carried = np.flatnonzero((last_wave >= 0) & (last_wave < self._wave))
        self.repeated = np.flatnonzero(last_wave == self._wave)
        self._num_kinds = int(kinds.max()) + 1

    @cached_property
    def late(self) -> Ints:
        """Of each carried touch: extent of waves v..w-1, v its tile's last wave and w its own."""
        return self._extent_of(self._last_wave[self.carried], self._wave[self.carried] - 1)

    @cached_property
    def early(self) -> Ints:
        """Of each carried touch: extent of waves v+1..w. Shape (carried, kinds), like late."""
        return self._extent_of(self._last_wave[self.carried] + 1, self._wave[self.carried])

    @cached_property
    def of_wave(self) -> Ints:
        """Extent each wave touches in one step, shape (waves, kinds)."""
        waves = np.arange(self._wave[-1] + 1)
        return self._extent_of(waves, waves)

    @cached_property
    def between(self) -> Ints:
        """Of each touch: extent of the other tiles touched since its tile's last touch.

        Shape (touches, kinds).
        """
        touches = np.arange(len(self._wave))
        return self._distinct(self._previous + 1, touches)

    def _extent_of(self, first: Ints, last: Ints) -> Ints:
        """Extent of the distinct tiles that waves first..last touch in one step, per kind."""
        if self._wave[-1] < _DENSE_WAVES:
            table = self._wave_table
            return table[last + 1, first] - table[first, first]
        starts = np.searchsorted(self._wave, np.arange(self._wave[-1] + 2))
        return self._distinct(starts[first], starts[last + 1])

    @cached_property
    def _wave_table(self) -> Ints:
        """[x, v]: extent of touches in waves below x whose tile was last touched before wave v."""
        waves = int(self._wave[-1]) + 1
        new = np.flatnonzero(self._last_wave < self._wave)
        at = (self._wave[new] * (waves + 1) + self._last_wave[new] + 1) * self._num_kinds
        shape = (waves, waves + 1, self._num_kinds)
        counted = np.bincount(at + self.kind[new], self.extent[new], minlength=math.prod(shape))
        by_last_wave = counted.astype(np.int64).reshape(shape).cumsum(axis=1)
        return np.concatenate((np.zeros_like(by_last_wave[:1]), by_last_wave.cumsum(axis=0)))

    def _distinct(self, first: Ints, stop: Ints) -> Ints:
        """Extent of the distinct tiles among touches first..stop-1, per kind."""
        weights = np.zeros((len(self._wave), self._num_kinds), np.int64)
        weights[np.arange(len(self._wave)), self.kind] = self.extent
        return sum_below(self._previous + 1, weights, first, stop, first + 1)


def previous_touch(tiles: Ints) -> Ints:
    """Where the tile of each touch was touched before, -1 where it was not; shape (touches,)."""
    keys = tiles.astype(np.uint16) if tiles.max() < 2**16 else tiles  # 16 bits sort by radix
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(tiles[order[1:]] == tiles[order[:-1]])
    previous = np.full(len(tiles), -1)
    previous[order[again + 1]] = order[again]
    return previous


def sum_below(values: Ints, weights: Ints, first: Ints, stop: Ints, bound: Ints) -> Ints:
    """Of each query: the sum of weights[i] over first <= i < stop with values[i] < bound.

    values (n,), weights (n, columns), queries (q,); returns (q, columns). A wavelet matrix, walked
    bit by bit as it is built: O((n + q) log max(values)).
    """
    total = np.zeros((len(first), weights.shape[1]), np.int64)
    highest = int(max(values.max(), bound.max(initial=0)))
    for bit in reversed(range(highest.bit_length())):
        low = (values >> bit & 1) == 0
        low_before = np.concatenate(([0], np.cumsum(low)))
        low_weight = np.zeros((len(values) + 1, weights.shape[1]), np.int64)
        np.cumsum(weights * low[:, None], axis=0, out=low_weight[1:])
        take = (bound >> bit & 1) == 1  # everything low in this bit is below the bound
        total += np.where(take[:, None], low_weight[stop] - low_weight[first], 0)
        first, stop = (
            np.where(take, low_before[-1] + at - low_before[at], low_before[at])
            for at in (first, stop)
        )
        order = np.concatenate((np.flatnonzero(low), np.flatnonzero(~low)))
        values, weights = values[order], weights[order]
    return total
