"""Offline tuning: search each problem on a GPU of this machine and keep the verdicts."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.files import as_path, check_writable
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import (
    CacheStore,
    check_cache_file,
    export_entries,
    shared_store,
)
from autoswizzle.errors import ArgumentError, TuneError, UnavailableError
from autoswizzle.hardware import Gpu, check_device, detect, driver_version
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem, as_problems
from autoswizzle.settings import settings
from autoswizzle.toolchain import triton_version

if TYPE_CHECKING:
    from autoswizzle.search.study import Progress, SearchResult

STUDIES = "studies.sqlite3"  # in the cache folder: every measurement of every search


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


def tune(
    problems: Iterable[GemmProblem | str],
    *,
    effort: str = "standard",
    storage: str | None = None,
    devices: Sequence[int] | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool = True,
    trials: int | None = None,
    seconds: float | None = None,
    force: bool = False,
) -> TuneReport:
    """Find and keep the fastest configuration of each problem on a GPU of this machine.

    problems: GemmProblem or text forms. effort: quick, standard or exhaustive; trials, seconds
    override its budget. storage: an Optuna storage URL (default: SQLite in the cache folder), where
    every measurement is kept and an interrupted search continues. devices: the GPU's number
    (default 0). out: a cache file that gets the entries too. progress: show a bar. force: tune
    again what has an entry. Each verdict is stored before the next problem starts; a problem that
    fails is reported in its result.

    Raises ArgumentError for bad arguments, UnavailableError without a GPU or triton, CacheError
    when nothing could be stored.
    """
    wanted = list(dict.fromkeys(as_problems(problems)))
    if not wanted:
        raise ArgumentError("problems must hold at least one problem, got none")
    numbers = [0] if devices is None else devices
    if not isinstance(numbers, Sequence) or len(numbers) != 1:
        raise ArgumentError(f"devices must be a list of one GPU's number, got {devices!r:.80}")
    check_device(numbers[0])
    collection = None if out is None else as_path(out)
    if collection is not None:
        check_cache_file(collection)
    if triton_version() is None:
        raise UnavailableError("tuning needs triton, which is not installed")
    from autoswizzle.search.effort import find_effort
    from autoswizzle.search.progress import search_bar

    budget = find_effort(effort).with_budget(trials, seconds)
    gpu = detect(numbers[0])
    store = shared_store()
    store.check_writable()
    if collection is not None:
        check_writable(collection.parent)
    if storage is None:
        storage = f"sqlite:///{settings().cache_dir / STUDIES}"
    results = []
    with (
        Laboratory(gpu, numbers[0], budget, storage) as laboratory,
        search_bar(len(wanted), shown=progress) as show,
    ):
        for problem in wanted:
            result = None if force else _known(problem, gpu, store)
            if result is None:
                result = _tuned(problem, laboratory, store, partial(show, problem))
            if collection is not None and result.entry is not None:
                export_entries(collection, [result.entry])
            show.finish(problem)
            results.append(result)
    return TuneReport(tuple(results))


def _known(problem: GemmProblem, gpu: Gpu, store: CacheStore) -> TuneResult | None:
    """The result of a problem that has a valid entry."""
    stored = store.get(key_for(problem, gpu, triton=triton_version()), kernels.current_source)
    return None if stored is None else TuneResult(problem, stored.entry, skipped=True)


def _tuned(
    problem: GemmProblem,
    laboratory: Laboratory,
    store: CacheStore,
    progress: Callable[["Progress"], None] | None,
) -> TuneResult:
    began = time.monotonic()
    try:
        found = laboratory.search(problem, progress)
        entry = entry_of(problem, laboratory, found)
    except TuneError as error:
        return TuneResult(problem, error=str(error), seconds=time.monotonic() - began)
    store.put(entry)
    return TuneResult(
        problem,
        entry,
        spearman=found.spearman,
        measured=len(found.measurements),
        infeasible=len(found.infeasible),
        seconds=time.monotonic() - began,
        compile_s=found.compile_s,
        measure_s=found.measure_s,
    )


def entry_of(problem: GemmProblem, laboratory: Laboratory, found: "SearchResult") -> CacheEntry:
    """The cache entry of a search that had a final."""
    final = found.final
    if final is None:
        raise TuneError(f"the search of {problem} ended without a final")
    theirs = final.confirmed[-1]
    winner = final.measurement
    kernel = final.winner.kernel
    source = "" if kernel == "torch" else kernels.source_hash(kernel)
    return CacheEntry(
        key=key_for(problem, laboratory.gpu, source, triton_version()),
        config=final.winner,
        time_us=winner.time_us,
        torch_us=theirs.time_us,
        ratio=final.ratio if final.winner == final.fastest else 1.0,
        ratio_low=final.ratio_low if final.winner == final.fastest else None,
        ratio_high=final.ratio_high if final.winner == final.fastest else None,
        host_us=winner.host_us,
        method=winner.method,
        trials=len(found.measurements) + len(found.infeasible),
        effort=laboratory.effort.name,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        gpu=laboratory.gpu.name,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """What a measurement was made with: torch, CUDA, triton and driver, where known."""
    import torch
    import triton

    found = {"torch": str(torch.__version__), "triton": str(triton.__version__)}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    driver = driver_version()
    return found if driver is None else {**found, "driver": driver}
