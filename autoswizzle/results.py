"""What became of the problems of one call of tune."""

from dataclasses import dataclass
from typing import Any

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What became of one problem.

    entry: the stored verdict; error: why there is none. skipped: it was tuned before. measured,
    infeasible: configurations timed and refused. seconds: wall time, of which compile_s compiled
    and measure_s measured.
    """

    problem: GemmProblem
    entry: CacheEntry | None = None
    error: str | None = None
    spearman: float | None = None
    measured: int = 0
    infeasible: int = 0
    seconds: float = 0.0
    compile_s: float = 0.0
    measure_s: float = 0.0
    skipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping; the problem in its text form."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["problem"] = str(self.problem)
        data["entry"] = self.entry and self.entry.to_dict()
        return data


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The results of one call of tune, in the order of the problems."""

    results: tuple[TuneResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every problem has a verdict."""
        return all(result.error is None for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping."""
        return {"ok": self.ok, "results": [result.to_dict() for result in self.results]}
