"""What was tuned on each GPU, and what it brings: entries and studies side by side."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.config import TORCH
from autoswizzle.hardware import chip_of
from autoswizzle.kernels import current_source
from autoswizzle.problem import GemmProblem
from autoswizzle.report.tables import table
from autoswizzle.toolchain import triton_version

if TYPE_CHECKING:
    from autoswizzle.search.studies import Study

_log = logging.getLogger(__name__)

DAY = 10  # characters of an ISO 8601 date and time


def state_of(entry: CacheEntry) -> str:
    """Whether a lookup may use the entry: ok, predicted, or outdated and by what."""
    version = triton_version()
    if version is not None and entry.key.triton != ".".join(map(str, version)):
        return f"outdated: triton {entry.key.triton}"
    if entry.key.source != current_source(entry.config.kernel):
        return "outdated: kernel source"
    return "ok" if entry.origin == "measured" else entry.origin


@dataclass(frozen=True, slots=True)
class Summary:
    """What measured entries bring, by problem: how many, and how many of them won.

    geomean: of torch's time over that of what runs, torch itself counting 1; None without one.
    torch_share: of the problems that are left to torch. outdated: problems whose entry no lookup
    uses any more.
    """

    problems: int
    wins: int
    geomean: float | None
    torch_share: float | None
    outdated: int

    @classmethod
    def of(cls, entries: Iterable[CacheEntry]) -> "Summary":
        """The summary of entries, one for each problem; predicted ones do not count."""
        measured = [entry for entry in entries if entry.origin == "measured"]
        logs = [math.log(entry.ratio) for entry in measured if entry.ratio is not None]
        kept = sum(entry.config == TORCH for entry in measured)
        return cls(
            problems=len(measured),
            wins=sum(entry.won for entry in measured),
            geomean=math.exp(sum(logs) / len(logs)) if logs else None,
            torch_share=kept / len(measured) if measured else None,
            outdated=sum(state_of(entry) != "ok" for entry in measured),
        )

    def __str__(self) -> str:
        if not self.problems:
            return "no measured problem"
        counts = f"problems {self.problems}, wins {self.wins}"
        brings = "" if self.geomean is None else f", geomean {self.geomean:.3f} x torch"
        kept = f", left to torch {100 * (self.torch_share or 0):.0f} %"
        return counts + brings + kept + (f", outdated {self.outdated}" if self.outdated else "")


@dataclass(frozen=True, slots=True)
class Tuned:
    """What one kind of GPU has: its chip, marketing names, an entry for each problem, studies."""

    chip: str
    names: tuple[str, ...]
    entries: tuple[CacheEntry, ...]
    studies: tuple["Study", ...]

    @property
    def title(self) -> str:
        """Its names and its chip."""
        return f"{', '.join(self.names)} ({self.chip})" if self.names else self.chip

    @property
    def summary(self) -> Summary:
        """What its entries bring."""
        return Summary.of(self.entries)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping."""
        return {
            "gpu": list(self.names),
            "chip": self.chip,
            "summary": asdict(self.summary),
            "problems": [_entry_dict(entry) for entry in self.entries],
            "studies": [_study_dict(study) for study in self.studies],
        }


def by_gpu(entries: Iterable[CacheEntry], studies: Iterable["Study"] = ()) -> list[Tuned]:
    """Entries and studies by GPU, each sorted by problem.

    Of several entries for a problem the one that holds here counts, then the newest measured.
    """
    kept: dict[str, dict[GemmProblem, CacheEntry]] = {}
    names: dict[str, set[str]] = {}
    for entry in entries:
        try:
            chip = _chip(entry)
        except OverflowError:
            _log.warning("ignoring an entry of %s: no GPU is that large", entry.key.problem)
            continue
        if entry.gpu:
            names.setdefault(chip, set()).add(entry.gpu)
        rival = kept.setdefault(chip, {}).setdefault(entry.key.problem, entry)
        if _standing(entry) > _standing(rival):
            kept[chip][entry.key.problem] = entry
    searched: dict[str, list[Study]] = {}
    for study in studies:
        searched.setdefault(study.chip, []).append(study)
    return [
        Tuned(
            chip,
            tuple(sorted(names.get(chip, ()))),
            tuple(sorted(kept.get(chip, {}).values(), key=lambda item: _order(item.key.problem))),
            tuple(sorted(searched.get(chip, ()), key=lambda item: _order(item.problem))),
        )
        for chip in sorted({*kept, *searched})
    ]


def entry_table(entries: Sequence[CacheEntry]) -> str:
    """A line for each problem: the winner, its time and rate, and how it compares with torch."""
    return table(ENTRY_TITLES, [entry_row(entry) for entry in entries])


def study_table(studies: Sequence["Study"]) -> str:
    """A line for each search: trials by outcome, and what it found."""
    return table(STUDY_TITLES, [study_row(study) for study in studies])


ENTRY_TITLES = (
    "problem",
    "kernel",
    "tile",
    "order",
    "us",
    "TFLOPS",
    "vs torch",
    "interval",
    "date",
    "state",
)
STUDY_TITLES = (
    "problem",
    "trials",
    "measured",
    "infeasible",
    "measuring s",
    "best us",
    "torch us",
    "own vs torch",
    "interval",
    "Spearman",
)


def entry_row(entry: CacheEntry) -> tuple[object, ...]:
    """The cells of ENTRY_TITLES."""
    config = entry.config
    return (
        str(entry.key.problem),
        config.kernel,
        None if config == TORCH else config.tile,
        None if config == TORCH else config.order,
        entry.time_us,
        _tflops(entry),
        entry.ratio,
        _interval(entry.ratio_low, entry.ratio_high),
        entry.date[:DAY],
        state_of(entry),
    )


def study_row(study: "Study") -> tuple[object, ...]:
    """The cells of STUDY_TITLES; the times are those of the screening, the ratio the final's."""
    final = study.final
    classes = ", ".join(f"{count} {kind}" for kind, count in study.infeasible.most_common())
    return (
        str(study.problem),
        len(study.records),
        len(study.measurements),
        classes or None,
        study.measure_s,
        study.best and study.best.time_us,
        study.torch_us,
        final and final.ratio,
        final and _interval(final.ratio_low, final.ratio_high),
        study.spearman,
    )


def _interval(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:.3f}..{high:.3f}"


def _tflops(entry: CacheEntry) -> float | None:
    rate = entry.key.problem.flops / entry.time_us / 1e6
    return rate if math.isfinite(rate) else None  # no file is trusted to hold a sane time


def _chip(entry: CacheEntry) -> str:
    key = entry.key
    return chip_of(key.vendor, key.capability, key.num_sms, key.l2_bytes, key.shared_bytes)


def _standing(entry: CacheEntry) -> tuple[bool, bool, str]:
    return state_of(entry) == "ok", entry.origin == "measured", entry.date


def _order(problem: GemmProblem) -> tuple[object, ...]:
    sizes = (problem.batch, problem.n, problem.k, problem.m)
    return problem.dtype, problem.precision, problem.layout, *sizes, str(problem)


def _entry_dict(entry: CacheEntry) -> dict[str, Any]:
    names = ("time_us", "torch_us", "ratio", "ratio_low", "ratio_high", "won", "beats_torch")
    more = ("method", "effort", "trials", "date")
    return {
        "problem": str(entry.key.problem),
        "config": entry.config.to_dict(),
        "tflops": _tflops(entry),
        **{name: getattr(entry, name) for name in (*names, *more)},
        "state": state_of(entry),
    }


def _study_dict(study: "Study") -> dict[str, Any]:
    final = study.final
    return {
        "problem": str(study.problem),
        "trials": len(study.records),
        "measured": len(study.measurements),
        "infeasible": dict(study.infeasible.most_common()),
        "outdated": study.outdated,
        "measure_s": study.measure_s,
        "best": study.best and {"config": study.best.config.to_dict(), "us": study.best.time_us},
        "torch_us": study.torch_us,
        "final": final
        and {
            "fastest": final.fastest.to_dict(),
            "ratio": final.ratio,
            "ratio_low": final.ratio_low,
            "ratio_high": final.ratio_high,
        },
        "spearman": study.spearman,
        "curve": study.curve,
    }
