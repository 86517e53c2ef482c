"""The verdict on one problem on one GPU: an entry that holds, another process's, or a search's."""

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import CacheStore
from autoswizzle.errors import CacheError, TuneError
from autoswizzle.hardware import Gpu, driver_version
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem
from autoswizzle.results import TuneResult
from autoswizzle.toolchain import triton_version

if TYPE_CHECKING:
    from autoswizzle.search.claims import Claims
    from autoswizzle.search.study import SearchResult


def known_result(problem: GemmProblem, gpu: Gpu, store: CacheStore) -> TuneResult | None:
    """The result of a problem that has a valid entry."""
    stored = store.get(key_for(problem, gpu, triton=triton_version()), kernels.current_source)
    return None if stored is None else TuneResult(problem, stored.entry, skipped=True)


def shared_result(
    problem: GemmProblem,
    laboratory: Laboratory,
    store: CacheStore,
    claims: "Claims",
    force: bool,
    search: Callable[[], "SearchResult"],
) -> TuneResult | None:
    """The result of a problem that others may tune as well; None while one does."""
    from autoswizzle.search.history import study_name

    version = ".".join(map(str, triton_version() or ()))
    name = f"{study_name(problem, laboratory.gpu)} triton {version}"
    try:
        with claims.claimed(name) as ours:
            if not ours:
                return None
            entry = None if force else _verdict(claims.verdict(name), problem, laboratory.gpu)
            if entry is not None:
                store.put(entry)
                return TuneResult(problem, entry, skipped=True)
            result = _tuned(problem, laboratory, store, search)
            if result.entry is not None:
                claims.save_verdict(name, result.entry.to_dict())
            return result
    except TuneError as error:  # the storage was lost
        return TuneResult(problem, error=str(error))


def _verdict(stored: dict[str, Any] | None, problem: GemmProblem, gpu: Gpu) -> CacheEntry | None:
    """The entry that another process stored, if it holds here."""
    if stored is None:
        return None
    try:
        entry = CacheEntry.from_dict(stored)
    except CacheError:
        return None  # another version's
    return entry if holds(entry, problem, gpu) else None


def holds(entry: CacheEntry, problem: GemmProblem, gpu: Gpu) -> bool:
    """Whether an entry is of problem on gpu, measured, and of the kernels and triton here."""
    source = kernels.current_source(entry.config.kernel)
    key = source is not None and key_for(problem, gpu, source, triton_version())
    return entry.origin == "measured" and entry.key == key


def _tuned(
    problem: GemmProblem,
    laboratory: Laboratory,
    store: CacheStore,
    search: Callable[[], "SearchResult"],
) -> TuneResult:
    began = time.monotonic()
    try:
        found = search()
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
    kernel, won = final.winner.kernel, final.winner == final.fastest
    source = "" if kernel == "torch" else kernels.source_hash(kernel)
    return CacheEntry(
        key=key_for(problem, laboratory.gpu, source, triton_version()),
        config=final.winner,
        time_us=winner.time_us,
        torch_us=theirs.time_us,
        ratio=final.ratio if won else 1.0,
        ratio_low=final.ratio_low if won else None,
        ratio_high=final.ratio_high if won else None,
        host_us=winner.host_us,
        method=winner.method,
        trials=len(found.measurements) + len(found.infeasible),
        effort=laboratory.effort.name,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        gpu=laboratory.gpu.name,
        versions=versions(),
        fastest=None if won else final.fastest,
        fastest_ratio=None if won else final.ratio,
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
