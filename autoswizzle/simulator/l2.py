"""The L2 as it is: the whole-tile LRU of lru.py, corrected by what DRAM counters show.

What differs, and from which counters, is in docs/predictor.md:

- Capacity is what one SM finds cached (Gpu.l2_effective_bytes); programs of all resident blocks of
  an SM share it.
- C passes through the cache. It is written to one partition, so of the effective capacity, which
  counts operands kept in both, it takes the share l2_effective_bytes / l2_bytes.
- The edge is soft: replacement is not exactly LRU, and slices fill unevenly. A touch hits with a
  probability that falls from 1 to 0 over a range of reuse distances.
- Programs leave lockstep: on average each is behind the one before it in the order, by its lag, and
  those that share a tile read it at different times. Some of them find it gone.

Drift in closed form. Time is in work items, from 0 to 1 as one is done; K then cancels out. A tile
touched by two programs d apart in the order is touched d * lag apart on average, and farther than t
with probability (d * lag / (d * lag + t))^2. In a span t, a wave that touches E distinct elements
in lockstep touches E * t of them, and besides, for each such pair, its tile in as much of the
span as the pair is apart, at most t. The span in which that fills the cache is the lifetime of what
is cached, and pairs farther apart than it read their tile twice; unless they are so far apart, by
nearly a work item, that the later one is among the next wave's. Where programs start one after the
other, early readers and late ones also move the touches of a tile carried from wave to wave closer
together, and spread what is read between them: its reuse distance changes by the difference.
Persistent programs drift in no order.
"""

import numpy as np
from numpy.typing import NDArray

from autoswizzle.hardware import Gpu
from autoswizzle.simulator.lru import Distances, Traffic
from autoswizzle.simulator.work import Launch

# Fitted to benchmarks/results/h200/fitting_counters.json, H200, 2026-11-30, and to nothing else.
# Edge: reuse distances, as shares of the capacity, at which hits begin and cease to fail.
SOFT_EDGE = (0.6, 1.4)
STAGGER = 0.65  # lag after the first wave where every tile has a program: 1 is evenly spread starts
DRIFT = 0.033  # what each wave adds to the lag of persistent programs, up to 1
# Bytes of a row of A in flight on an SM, stages times resident blocks, above which programs drift:
# 384 did not, 512 and 576 did. A program ahead waits for DRAM unless enough of it is in flight.
IN_FLIGHT = 448

_NEWTON_STEPS = 8  # from below, on a concave function: quadratic, and never past the lifetime

Floats = NDArray[np.float64]


def measured_traffic(launch: Launch, gpu: Gpu, out_itemsize: float) -> Traffic:
    """Hits and DRAM reads of operand tiles as counters would show them; expected values, rounded.

    out_itemsize: bytes of an element of C (4 for the parts of a split K).
    """
    distances = Distances(launch.reuse(), launch.kinds())
    capacity = gpu.l2_effective_bytes / launch.itemsize
    stored = launch.concurrency * launch.block_m * launch.block_n * out_itemsize / launch.itemsize
    apart = stored * gpu.l2_effective_bytes / gpu.l2_bytes * distances.reuse.waves_apart
    repeated: NDArray[np.number] = distances.repeated_within(int(capacity))
    lag = _lag(launch, gpu, distances, stored)
    if lag.any():
        apart = apart if launch.persistent else apart + _moved(launch, distances, lag)
        repeated = repeated * (1 - _parted(distances, lag, capacity))[:, None]
    first = distances.first + distances.same + apart[:, None]
    last = first + distances.slope * (distances.lengths - 1)
    share = _mean_hits(first / capacity, last / capacity)
    carried = np.where(distances.own > 0, distances.lengths * share, 0)
    found = distances.traffic(carried, repeated, launch.itemsize)
    return found.scaled(launch.tiles, launch.followed)


def _lag(launch: Launch, gpu: Gpu, distances: Distances, stored: float) -> Floats:
    """How far each program of a wave is behind the one before it, (waves,), in work items.

    Where DRAM is busy anyway, everybody waits for it, and so together. stored: elements of C that a
    wave writes, in operand elements.
    """
    wave = np.arange(distances.reuse.waves)
    resident = -(-launch.concurrency // gpu.num_sms)
    if launch.stages * launch.block_k * launch.itemsize * resident <= IN_FLIGHT:
        return np.zeros(len(wave))
    if launch.persistent:
        spread = np.minimum(1, DRIFT * (wave + 0.5))
    else:
        spread = np.where(wave > 0, STAGGER, 0.0)
    keeps_up = gpu.sustained
    dram_s = (_touched(distances) + stored) * launch.itemsize / (1e9 * keeps_up.dram_gbs)
    flop = 2 * launch.concurrency * launch.block_m * launch.block_n * launch.k / launch.split_k
    tflops = keeps_up.peak_share * gpu.rates.bf16 * 2 / launch.itemsize
    busy = np.minimum(1, dram_s / (flop / (1e12 * tflops)))
    lag: Floats = spread / launch.concurrency * np.sqrt(1 - busy**2)
    return lag


def _parted(distances: Distances, lag: Floats, capacity: float) -> Floats:
    """Probability that a touch repeated in its wave comes too late for what is cached."""
    reuse = distances.reuse
    wave = reuse.wave[reuse.repeated]
    late = lag[wave] * reuse.pieces_apart(reuse.repeated)
    touched = _touched(distances)
    size = distances.whole(reuse.repeated)
    life = np.zeros(reuse.waves)
    for _ in range(_NEWTON_STEPS):
        near = late / np.maximum(late + life[wave], 1e-12)  # 0 in waves without a lag
        held = touched * life + np.bincount(wave, size * near * life[wave], reuse.waves)
        life += (capacity - held) / (touched + np.bincount(wave, size * near**2, reuse.waves))
    late = np.where(touched[wave] <= capacity, 0, late)  # nothing of such a wave is ever gone
    life = np.minimum(1, life)[wave]
    gone: Floats = (late / (late + life)) ** 2 - (late / np.maximum(late + 1 - life, 1e-12)) ** 2
    return np.maximum(0, gone)


def _moved(launch: Launch, distances: Distances, lag: Floats) -> Floats:
    """Elements by which lags change the reuse distance of each carried touch."""
    reuse = distances.reuse
    repeats = distances.whole(reuse.repeated) * reuse.pieces_apart(reuse.repeated)
    spread = np.bincount(reuse.wave[reuse.repeated], repeats, reuse.waves)
    wave = reuse.wave[reuse.carried]
    sooner = reuse.waves_apart * launch.concurrency - reuse.pieces_apart(reuse.carried)
    moved: Floats = lag[wave] * (spread[wave] - sooner * _touched(distances)[wave])
    return moved


def _touched(distances: Distances) -> Floats:
    """Distinct operand elements of each wave, (waves,)."""
    reuse = distances.reuse
    sizes = distances.whole(reuse.new)
    return np.bincount(reuse.wave[reuse.new], sizes, reuse.waves).astype(np.float64)


def _mean_hits(first: Floats, last: Floats) -> Floats:
    """Mean probability of a hit over distances that run evenly from first to last."""
    sure, never = SOFT_EDGE
    begin, end = ((never - distance) / (never - sure) for distance in (first, last))
    level = np.abs(end - begin) < 1e-9
    rise = _integral(end) - _integral(begin)
    return np.where(level, np.clip(begin, 0, 1), rise / np.where(level, 1, end - begin))


def _integral(x: Floats) -> Floats:
    """Integral of clip(x, 0, 1) from below 0 to x."""
    inside = np.clip(x, 0, 1)
    integral: Floats = inside * inside / 2 + np.maximum(x - 1, 0)
    return integral
