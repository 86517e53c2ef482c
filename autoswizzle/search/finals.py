"""The final of a search: does anything beat torch by the margin, beyond noise, on fresh data?"""

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ArgumentError, CandidateError
from autoswizzle.search.measure import Measurement, Race
from autoswizzle.search.timing import LONG, SHORT, Turn
from autoswizzle.variety import varied

# Of 79 finals (benchmarks/results/h200/suite-*, 2026-11-30) 76 were won by a configuration within
# this of the fastest in the screening; the median is 1 % behind it.
NEAR = 1.08
OF_A_TILE = 2
TRIES = 2  # of the fastest, each against torch alone

_log = logging.getLogger(__name__)

RaceCall = Callable[[Sequence[GemmConfig], int, Turn], Race]


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome of a final.

    winner: the configuration to use, torch unless another one beat it by the margin. fastest: the
    fastest of ours, those aside that made room for it; ratio: torch's time over its,
    ratio_low..ratio_high: 95 % confidence interval, from the confirming race of the two.
    contenders: every measurement of the first race; confirmed: those of the second (fastest,
    torch). own: the ratio and its interval where each runs at the clock its power leaves it
    (timing.LONG); None where torch was not slower, and in finals of before there were such races.
    """

    winner: GemmConfig
    fastest: GemmConfig
    ratio: float
    ratio_low: float
    ratio_high: float
    contenders: tuple[Measurement, ...]
    confirmed: tuple[Measurement, ...]
    own: tuple[float, float, float] | None = None

    @property
    def settled(self) -> bool:
        """Whether it was raced in full: what beat torch at one clock at its own too."""
        return self.own is not None or self.ratio_low <= 1

    @property
    def slower_alone(self) -> bool:
        """Whether torch is faster, beyond noise, where each runs at its own clock."""
        return self.own is not None and self.own[2] < 1

    @property
    def measurement(self) -> Measurement:
        """The winner's confirming measurement."""
        return next(item for item in self.confirmed if item.config == self.winner)

    def judged(self, margin: float) -> "Final":
        """The same races, won by the fastest if ratio_low is above 1 + margin and it is not
        slower alone, else by torch.
        """
        won = self.ratio_low > 1 + margin and not self.slower_alone
        return replace(self, winner=self.fastest if won else TORCH)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of every field."""
        return {
            **asdict(self),
            "winner": self.winner.to_dict(),
            "fastest": self.fastest.to_dict(),
            "contenders": [item.to_dict() for item in self.contenders],
            "confirmed": [item.to_dict() for item in self.confirmed],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Final":
        """Inverse of to_dict; raises ArgumentError on a missing or unknown field, and for an own
        that is no ratio and its interval.
        """
        if not isinstance(data, dict) or {"own", *data} != set(cls.__dataclass_fields__):
            raise ArgumentError(f"final must have the fields of Final, got {data!r}")
        parsed: dict[str, Any] = {
            "winner": GemmConfig.from_dict(data["winner"]),
            "fastest": GemmConfig.from_dict(data["fastest"]),
            "contenders": tuple(map(Measurement.from_dict, data["contenders"])),
            "confirmed": tuple(map(Measurement.from_dict, data["confirmed"])),
            "own": _own(data.get("own")),
        }
        return cls(**{**data, **parsed})


def _own(stored: object) -> tuple[float, float, float] | None:
    """Final.own, as a storage holds it."""
    if stored is None:
        return None
    match stored:
        case [float(ratio), float(low), float(high)] if 0 < low <= ratio <= high < math.inf:
            return ratio, low, high
    raise ArgumentError(f"own must be a ratio and its interval, got {stored!r:.80}")


def run_final(finalists: Sequence[GemmConfig], race: RaceCall, margin: float) -> Final:
    """Race the finalists and torch, then the fastest finalist and torch again.

    race(configs, seed, turn) times configs in turns on inputs of that seed, new for each race: the
    second is free of the first one's luck. The fastest wins only if the whole confidence interval
    of torch's time over its own lies above 1 + margin; otherwise torch wins. One that is slower
    alone, as it draws more power, makes room for the next that is faster than torch. A finalist
    that fails a race is left out; raises CandidateError when none is left, or when twice none is to
    blame.
    """
    sound = list(finalists)
    unexplained = False
    while True:
        try:
            first = race([*sound, TORCH], 1, SHORT)
        except CandidateError:
            able = _without_failing(sound, race)
            if not able or (unexplained and able == sound):
                raise
            unexplained, sound = able == sound, able
            continue
        slower_alone: list[Final] = []
        for ours in sorted(first.measurements[:-1], key=lambda item: item.time_us)[:TRIES]:
            try:
                final = _confirmed(ours.config, first, race, margin)
            except CandidateError as error:
                if sound == [ours.config]:
                    raise
                _leave_out(ours.config, error)
                sound.remove(ours.config)
                break
            if final.slower_alone:
                slower_alone.append(final)
            elif final.own is not None or not slower_alone:
                return final
        else:
            return max(slower_alone, key=lambda final: final.own or ())


def _confirmed(fastest: GemmConfig, first: Race, race: RaceCall, margin: float) -> Final:
    """The final that fastest is the fastest of; raises CandidateError where it fails."""
    second = race([fastest, TORCH], 2, SHORT)
    ratio, low, high = second.ratio()
    own = race([fastest, TORCH], 2, LONG).ratio() if low > 1 else None
    raced = first.measurements, second.measurements
    return Final(TORCH, fastest, ratio, low, high, *raced, own=own).judged(margin)


def _without_failing(finalists: Sequence[GemmConfig], race: RaceCall) -> list[GemmConfig]:
    """Those that run alone, when the race of all failed."""
    sound = []
    for config in finalists:
        try:
            race([config], 1, SHORT)
            sound.append(config)
        except CandidateError as alone:
            _leave_out(config, alone)
    return sound


def _leave_out(config: GemmConfig, error: CandidateError) -> None:
    _log.warning("left out of the final: %s: %s: %s", config, error.kind, error)


def finalists(measured: Sequence[Measurement], count: int, default: GemmConfig) -> list[GemmConfig]:
    """The count fastest configurations of ours and, if it was measured, the default.

    Of one tile at most OF_A_TILE while others are within NEAR of the fastest: at the clocks of a
    long run the power limit ranks tiles otherwise than a short screening does.
    """
    ours = sorted(
        (item for item in measured if item.config != TORCH), key=lambda item: item.time_us
    )
    chosen = [
        item.config
        for item in varied(
            ours,
            kind=lambda item: _tile(item.config),
            most=OF_A_TILE,
            near=lambda item: item.time_us <= NEAR * ours[0].time_us,
        )
    ][:count]
    if default not in chosen and any(item.config == default for item in ours):
        chosen.append(default)
    return chosen


def _tile(config: GemmConfig) -> Hashable:
    return config.kernel, config.tile, config.warp_specialize, config.stream_k, config.swap_ab
