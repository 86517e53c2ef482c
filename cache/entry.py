"""One tuned entry: what was chosen for a key, what it measured, and how."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from autoswizzle.cache.key import CacheKey
from autoswizzle.config import MARGIN, GemmConfig
from autoswizzle.errors import CacheError, ConfigError, SchemaError, check_printable

SCHEMA = 1
ORIGINS = ("measured", "predicted")
FASTEST = ("fastest", "fastest_ratio")  # of one measurement, even where they can't be read


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The verdict for one key.

    time_us, torch_us: device time of the chosen config and of torch.matmul, microseconds.
    ratio: torch_us / time_us of the final comparison, with its 95 % interval ratio_low..ratio_high.
    host_us: host time of one call. method: burst or sustained. date: ISO 8601, UTC.
    versions: torch, CUDA, driver, ptxas ...; gpu: the marketing name. Both are shown, not matched.
    origin: measured, or predicted (never used for dispatch).
    fastest: where torch is the verdict, the fastest configuration of ours, and fastest_ratio,
    torch's time over its; both None elsewhere and where they are unknown.
    extra: fields a later release added, kept when the entry is written again.
    """

    key: CacheKey
    config: GemmConfig
    time_us: float
    torch_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    host_us: float | None = None
    method: str = ""
    trials: int = 0
    effort: str = ""
    date: str = ""
    gpu: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    origin: str = "measured"
    fastest: GemmConfig | None = None
    fastest_ratio: float | None = None
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise CacheError(f"origin must be one of {', '.join(ORIGINS)}, got {self.origin!r:.80}")
        for name in _NUMBERS:
            value = getattr(self, name)
            optional = name != "time_us"
            if not (optional and value is None) and not _positive(value):
                raise CacheError(f"{name} must be a finite number above 0, got {value!r:.80}")
        for name in ("method", "effort", "date", "gpu"):
            check_printable(name, getattr(self, name), CacheError)
        if type(self.trials) is not int or not 0 <= self.trials < _MAX_TRIALS:
            raise CacheError(f"trials must be an integer of at least 0, got {self.trials!r:.80}")
        if (self.fastest is None) != (self.fastest_ratio is None):
            given = f"{self.fastest} and {self.fastest_ratio}"
            raise CacheError(f"fastest and fastest_ratio must go together, got {given}")
        if self.fastest is not None and (
            self.config.kernel != "torch" or self.fastest.kernel == "torch"
        ):
            raise CacheError(f"fastest must be ours, and config torch, got {self.fastest}")

    @property
    def won(self) -> bool:
        """Whether an own kernel is faster than torch, its whole interval above 1, by any margin."""
        if self.config.kernel == "torch" or self.ratio is None:
            return False
        return self.ratio > 1 and (self.ratio_low or self.ratio) > 1

    @property
    def beats_torch(self) -> bool:
        """Whether an own kernel won by MARGIN, whatever the margin of its search was."""
        return self.won and (self.ratio or 0.0) >= 1 + MARGIN

    def better_than(self, other: "CacheEntry") -> bool:
        """Whether this one is the better measured of two entries of one key."""
        return self._quality() > other._quality()

    def _quality(self) -> tuple[bool, int, str, bool]:
        return self.origin == "measured", self.trials, self.date, self.fastest is not None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of every field, unknown ones included, fastest only where known."""
        known = {name: getattr(self, name) for name in _FIELDS}
        known["key"], known["config"] = self.key.to_dict(), self.config.to_dict()
        known["versions"] = dict(self.versions)
        if self.fastest is not None:
            known |= {"fastest": self.fastest.to_dict(), "fastest_ratio": self.fastest_ratio}
        return {**self.extra, **known}

    @classmethod
    def from_dict(cls, data: object) -> "CacheEntry":
        """Inverse of to_dict; raises CacheError with the reason, SchemaError for a newer format."""
        if not isinstance(data, dict):
            raise CacheError(f"an entry must be an object, got {type(data).__name__}")
        schema = data.get("schema")
        if schema != SCHEMA or type(schema) is not int:
            newer = isinstance(schema, int) and schema > SCHEMA
            raise (SchemaError if newer else CacheError)(
                f"schema must be {SCHEMA}, got {schema!r:.80}"
            )
        values = {name: value for name, value in data.items() if name in _FIELDS}
        missing = {"key", "config", "time_us"} - set(values)
        if missing:
            raise CacheError(f"an entry must have {', '.join(sorted(missing))}")
        versions = values.get("versions") or {}
        values["versions"] = versions if isinstance(versions, dict) else {}
        try:
            values["config"] = GemmConfig.from_dict(values["config"])
        except ConfigError as error:
            raise CacheError(str(error)) from None
        values["key"] = CacheKey.from_dict(values["key"])
        extra = {name: value for name, value in data.items() if name not in _FIELDS}
        return cls(**values, extra=extra)._with_fastest()

    def _with_fastest(self) -> "CacheEntry":
        """With what extra says of fastest; one that a later release wrote stays there, unread.

        The verdict holds without it.
        """
        if "fastest" not in self.extra:
            return self
        extra = dict(self.extra)
        try:
            fastest = GemmConfig.from_dict(extra.pop("fastest"))
            return replace(
                self, fastest=fastest, fastest_ratio=extra.pop("fastest_ratio", None), extra=extra
            )
        except (ConfigError, CacheError):
            return self

    def to_json(self) -> str:
        """The entry as indented JSON text with sorted names."""
        return dump_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "CacheEntry":
        """Inverse of to_json; raises CacheError with the reason."""
        try:
            return cls.from_dict(parse_json(text))
        except (ValueError, RecursionError) as error:
            raise CacheError(f"not a JSON text: {error}") from None


def dump_json(data: object) -> str:
    """Diff-friendly JSON text: indented, names sorted, a newline at the end."""
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


_MAX_NUMBER = 1e12  # microseconds, some eleven days: no product takes longer
_MAX_TRIALS = 2**31
_NUMBERS = ("time_us", "torch_us", "ratio", "ratio_low", "ratio_high", "host_us", "fastest_ratio")
# of every entry's text, in which what else there is comes from extra
_FIELDS = tuple(item.name for item in fields(CacheEntry) if item.name not in (*FASTEST, "extra"))


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and 0 < value < _MAX_NUMBER


def parse_json(text: str) -> object:
    """The value of a JSON text; ValueError for what is none, and for numbers that are not finite:
    NaN and the infinities, which Python's reader takes, and those beyond a float's range.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number:.80} is not a finite JSON number")
    return value
