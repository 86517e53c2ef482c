"""The L2 as it is: the whole-tile LRU of lru.py, corrected by what DRAM counters show.

What differs, and from which counters, is in docs/predictor.md:

- Capacity is what one SM finds cached (Gpu.l2_effective_bytes); programs of all resident blocks of
  an SM share it.
- C passes through the cache. It is written to one partition, so of the effective capacity, which
  counts operands kept in both, it takes the share l2_effective_bytes / l2_bytes.
- The edge is soft: replacement is not exactly LRU, slices fill unevenly, and programs run slightly
  apart. A touch hits with a probability that falls from 1 to 0 over a range of reuse distances.
"""

import numpy as np
from numpy.typing import NDArray

from autoswizzle.hardware import Gpu
from autoswizzle.simulator.lru import Distances, Traffic
from autoswizzle.simulator.work import Launch

# Reuse distances, as shares of the capacity, at which hits begin and cease to fail. Fitted to
# tests/data/h200_gluon_l2_counters.json, H200, 2026-11-30.
SOFT_EDGE = (0.6, 1.4)


def measured_traffic(launch: Launch, gpu: Gpu, out_itemsize: float) -> Traffic:
    """Hits and DRAM reads of operand tiles as counters would show them; expected values, rounded.

    out_itemsize: bytes of an element of C (4 for the parts of a split K).
    """
    distances = Distances(launch.reuse(), launch.kinds())
    capacity = gpu.l2_effective_bytes / launch.itemsize
    stored = launch.concurrency * launch.block_m * launch.block_n * out_itemsize / launch.itemsize
    stored *= gpu.l2_effective_bytes / gpu.l2_bytes
    first = distances.first + distances.same + stored * distances.reuse.waves_apart[:, None]
    last = first + distances.slope * (distances.lengths - 1)
    share = _mean_hits(first / capacity, last / capacity)
    carried = np.where(distances.own > 0, distances.lengths * share, 0)
    return distances.traffic(carried, distances.repeated_within(int(capacity)), launch.itemsize)


def _mean_hits(first: NDArray[np.float64], last: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean probability of a hit over distances that run evenly from first to last."""
    sure, never = SOFT_EDGE
    begin, end = ((never - distance) / (never - sure) for distance in (first, last))
    level = np.abs(end - begin) < 1e-9
    rise = _integral(end) - _integral(begin)
    return np.where(level, np.clip(begin, 0, 1), rise / np.where(level, 1, end - begin))


def _integral(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Integral of clip(x, 0, 1) from below 0 to x."""
    inside = np.clip(x, 0, 1)
    integral: NDArray[np.float64] = inside * inside / 2 + np.maximum(x - 1, 0)
    return integral
