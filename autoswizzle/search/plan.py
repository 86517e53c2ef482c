"""What a search tries, in which order, and when it has tried enough."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.search.effort import Effort
from autoswizzle.search.history import Record, interrupted, measured, taken, tried
from autoswizzle.search.sampling import Proposer, SearchSpace
from autoswizzle.search.statistics import expected_gain

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A seed that is not tried: as it was given, and why."""

    seed: str
    reason: str


def legal_seeds(
    seeds: Sequence[GemmConfig | Mapping[str, Any]], searched: SearchSpace
) -> tuple[list[GemmConfig], list[Rejection]]:
    """The seeds that belong to the space; the others with the field and the legal values."""
    legal, rejected = [], []
    for seed in seeds:
        try:
            config = seed if isinstance(seed, GemmConfig) else GemmConfig.from_dict(dict(seed))
            reason = searched.why_outside(config)
        except ConfigError as error:
            reason = str(error)
        if reason is None:
            legal.append(config)
        else:
            rejected.append(Rejection(str(seed), reason))
            _log.warning("seed %s is not tried: %s", seed, reason)
    return legal, rejected


def spread(ranked: Sequence[GemmConfig], count: int) -> list[GemmConfig]:
    """The count best of ranked, every kernel family's best among them if there is room."""
    best = {config.kernel: config for config in reversed(ranked)}
    leaders = sorted(best.values(), key=ranked.index)[:count]
    others = [config for config in ranked if config not in leaders]
    chosen = {*leaders, *others[: count - len(leaders)]}
    return [config for config in ranked if config in chosen]


class Plan:
    """The order of one search and its end.

    Seeds come first, then the predictions spread over families, torch and the default; then the
    sampler's proposals. A configuration whose trial was interrupted is tried once more.
    """

    def __init__(
        self,
        seeds: Sequence[GemmConfig],
        predictions: Sequence[GemmConfig],
        searched: SearchSpace,
        effort: Effort,
        proposer: Proposer,
    ) -> None:
        self._effort = effort
        self._proposer = proposer
        self._learnt: set[int] = set()
        default = searched.default
        self._owed = [TORCH] if searched.why_outside(default) else [TORCH, default]
        legal = [config for config in predictions if searched.why_outside(config) is None]
        room = max(0, effort.trials - len(seeds) - len(self._owed))
        best = spread(legal, min(effort.seeds, room))
        self._queue = list(dict.fromkeys([*seeds, *best, *self._owed]))

    def why_stop(self, records: Sequence[Record]) -> str | None:
        """What ends the search now (trials, seconds, gain), None to go on.

        torch and the default are tried even when the seconds are over.
        """
        done = sum(record.outcome is not None for record in records)
        if done >= self._effort.trials:
            return "trials"
        over = tried(records)
        if self._is_late(records) and over.issuperset(self._owed):
            return "seconds"
        if self._effort.min_gain == 0 or not over.issuperset(self._queue):
            return None
        times = [item.time_us for item in measured(records) if item.config != TORCH]
        left = self._effort.trials - done
        return "gain" if expected_gain(times, left) < self._effort.min_gain else None

    def following(self, records: Sequence[Record], count: int) -> Iterator[GemmConfig]:
        """Up to count configurations to try next, none that is taken."""
        for record in records:
            if record.state == "finished" and record.number not in self._learnt:
                self._learnt.add(record.number)
                self._proposer.learn(record.config, record.time_us)
        may_end = self._effort.min_gain > 0 and not tried(records).issuperset(self._queue)
        begun = sum(item.state != "finished" or item.outcome is not None for item in records)
        held = taken(records)
        first = self._owed if self._is_late(records) else [*interrupted(records), *self._queue]
        for _ in range(min(count, self._effort.trials - begun)):
            config = next((item for item in first if item not in held), None)
            if config is None and not may_end:  # else what is proposed may compile in vain
                config = self._proposer.propose(held)
            if config is None:
                return
            held.add(config)
            yield config

    def _is_late(self, records: Sequence[Record]) -> bool:
        return sum(record.seconds for record in records) >= self._effort.seconds
