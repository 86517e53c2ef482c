"""What a search concludes from durations: medians with intervals, drift, expected gain."""

import math
import sys
from collections.abc import Sequence
from statistics import median

from autoswizzle.errors import LaunchError

CONFIDENCE = 0.95
LEAST_TIMES = 8  # from which a gain can be expected
DRIFT_LIMIT = 0.05  # first to last quarter of a series; beyond it clocks or neighbours moved


def is_number(value: object) -> bool:
    """Whether value is a number that a float holds: no bool, nan or infinity, no larger integer."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


def checked(samples: Sequence[float]) -> Sequence[float]:
    """The samples, if every one is a possible duration; raises LaunchError otherwise."""
    invalid = [value for value in samples if not (is_number(value) and value > 0)]
    if invalid or not samples:
        shown = invalid[0] if invalid else "no samples"
        raise LaunchError(f"a duration must be finite and above 0, got {shown}", "InvalidDuration")
    return samples


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median and the order statistics that enclose its true value with 95 % confidence.

    Distribution-free (binomial): at least six samples are needed, fewer give their extremes.
    """
    ordered = sorted(samples)
    count = len(ordered)
    tail, rank = 0.0, 0  # P(fewer than `rank` samples lie below the true median) = tail
    while rank < count // 2:
        tail += math.comb(count, rank) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    low = max(rank - 1, 0)
    return median(ordered), ordered[low], ordered[count - 1 - low]


def drift(samples: Sequence[float]) -> float:
    """Relative change of the median from the first to the last quarter of a series."""
    quarter = max(1, len(samples) // 4)
    return median(samples[-quarter:]) / median(samples[:quarter]) - 1


def expected_gain(times: Sequence[float], remaining: float) -> float:
    """Share of the best time that `remaining` further trials are expected to save.

    times: in the order of the trials. Each doubling of their number is taken to buy what the last
    one did. Infinite with fewer than LEAST_TIMES.
    """
    if len(times) < LEAST_TIMES:
        return math.inf
    bought = min(times[: len(times) // 2]) / min(times) - 1
    return bought * math.log2(1 + remaining / len(times))
