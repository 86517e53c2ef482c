"""Search budgets: every number that bounds a search, in one table."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoswizzle.config import MARGIN
from autoswizzle.errors import ArgumentError, check_choice
from autoswizzle.search.statistics import is_number

UNLIMITED_TRIALS = 1_000_000  # more than any space holds: a budget of seconds alone


@dataclass(frozen=True, slots=True)
class Effort:
    """What a search of one problem may spend.

    trials: configurations tried, the infeasible ones included. seconds: of measuring in trials,
    over all runs of the same study; compiling, which runs beside it, does not count. seeds:
    predictions tried before the sampler takes over. screening_ms: GPU time one candidate is timed
    for. finalists, final_ms: how many candidates the interleaved final compares, and the GPU time
    of each of its races, which the contenders share; those at own clocks take 2 s at least, as
    their turns are long. candidate_s: time limit of one candidate, after which it counts as hung.
    margin: by how much a winner must be faster than torch, beyond noise: torch's time over its own
    above 1 + margin. min_gain: the search ends when the rest of its budget is expected to save less
    than this share; 0 spends the budget in full.
    """

    name: str
    trials: int
    seconds: float
    seeds: int
    screening_ms: float
    finalists: int
    final_ms: float
    candidate_s: float = 30.0
    margin: float = MARGIN
    min_gain: float = 0.0

    def with_budget(self, trials: int | None = None, seconds: float | None = None) -> "Effort":
        """The same effort with the caller's budget, which is then spent in full.

        Raises ArgumentError unless trials >= 1 and seconds > 0.
        """
        if trials is None and seconds is None:
            return self
        if trials is not None and (type(trials) is not int or trials < 1):
            raise ArgumentError(f"trials must be an integer of at least 1, got {trials!r}")
        if seconds is not None and not (is_number(seconds) and seconds > 0):
            raise ArgumentError(f"seconds must be a number above 0, got {seconds!r}")
        return replace(
            self,
            trials=UNLIMITED_TRIALS if trials is None else trials,
            seconds=math.inf if seconds is None else float(seconds),
            min_gain=0.0,
        )

    def with_margin(self, margin: float | None = None) -> "Effort":
        """The same effort with the caller's margin; raises ArgumentError unless 0 <= margin < 1."""
        if margin is None:
            return self
        if not (is_number(margin) and 0 <= margin < 1):
            raise ArgumentError(f"margin must be a number from 0 to below 1, got {margin!r}")
        return replace(self, margin=float(margin))


EFFORTS: Mapping[str, Effort] = {
    effort.name: effort
    for effort in (
        Effort(
            "quick", trials=20, seconds=5, seeds=12, screening_ms=10,
            finalists=3, final_ms=600, min_gain=0.02,
        ),
        Effort(
            "standard", trials=60, seconds=12, seeds=20, screening_ms=15,
            finalists=4, final_ms=1000, min_gain=0.01,
        ),
        Effort(
            "exhaustive", trials=600, seconds=300, seeds=50, screening_ms=50,
            finalists=8, final_ms=3000,
        ),
    )
}  # fmt: skip


def find_effort(name: str) -> Effort:
    """The effort of that name; raises ArgumentError listing the legal ones."""
    check_choice("effort", name, EFFORTS)
    return EFFORTS[name]
