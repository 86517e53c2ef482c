"""Offline tuning: search each problem on a GPU, here or of a Dask cluster; keep the verdicts."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.files import as_path, check_writable
from autoswizzle.cache.store import CacheStore, check_cache_file, export_entries, shared_store
from autoswizzle.calibration import calibrated
from autoswizzle.cluster import Cluster, connected, scheduler_of
from autoswizzle.config import GemmConfig
from autoswizzle.errors import ArgumentError, TuneError, UnavailableError, check_flag
from autoswizzle.hardware import check_device, detect
from autoswizzle.laboratory import Compilers, Laboratory
from autoswizzle.problem import GemmProblem, as_problems
from autoswizzle.results import TuneReport, TuneResult
from autoswizzle.settings import settings
from autoswizzle.toolchain import triton_version
from autoswizzle.verdicts import holds, known_result, shared_result

if TYPE_CHECKING:
    from autoswizzle.search.progress import SearchBar
    from autoswizzle.search.study import SearchResult

STUDIES = "studies.sqlite3"  # in the cache folder: every measurement of every search


def tune(
    problems: Iterable[GemmProblem | str],
    *,
    effort: str = "standard",
    storage: str | None = None,
    devices: Sequence[int] | None = None,
    backend: str | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool = True,
    trials: int | None = None,
    seconds: float | None = None,
    margin: float | None = None,
    force: bool = False,
    from_scratch: bool = False,
) -> TuneReport:
    """Find and keep the fastest configuration of each problem on GPUs of this machine.

    problems: GemmProblem or text forms. effort: quick, standard or exhaustive; trials, seconds
    override its budget. margin: by how much a winner must be faster than torch, beyond noise
    (0.02). storage: an Optuna storage URL (default: SQLite in the cache folder), where every
    measurement is kept and an interrupted search continues; processes that share one, on any hosts
    if it is a server, tune no problem twice and all end with its verdict, whatever margin decided
    it. devices: the numbers of the GPUs (default 0); each problem goes to the next free one.
    backend: instead, the scheduler of a Dask cluster, dask://HOST:PORT, whose workers tune on their
    GPUs; this machine needs neither GPU nor triton then. out: a cache file that gets the entries
    too. progress: show a bar. force: tune again what has an entry. from_scratch: leave out what
    entries of like problems know, which a search tries first otherwise (known_configs). Each
    verdict is stored before its GPU's next problem starts; a problem that fails is reported in its
    result.

    Raises ArgumentError for bad arguments, UnavailableError without a GPU, triton or that cluster,
    CacheError when nothing could be stored, TuneError when the storage can't be used.
    """
    check_flag("progress", progress)
    check_flag("force", force)
    check_flag("from_scratch", from_scratch)
    wanted = list(dict.fromkeys(as_problems(problems)))
    if not wanted:
        raise ArgumentError("problems must hold at least one problem, got none")
    if backend is None:
        numbers = [0] if devices is None else devices
        _check_devices(numbers)
    else:
        scheduler_of(backend)
        _check_left_to_workers(devices, storage)
    collection = None if out is None else as_path(out)
    if collection is not None:
        check_cache_file(collection)
    if backend is None and triton_version() is None:
        raise UnavailableError("tuning needs triton, which is not installed")
    from autoswizzle.search.claims import Claims
    from autoswizzle.search.crew import Crew
    from autoswizzle.search.effort import find_effort
    from autoswizzle.search.progress import search_bar
    from autoswizzle.search.storage import file_url, quiet_optuna
    from autoswizzle.transfer import KNOWN, known_configs

    budget = find_effort(effort).with_budget(trials, seconds).with_margin(margin)
    gpus = [calibrated(detect(number)) for number in numbers] if backend is None else []
    store = shared_store()
    store.check_writable()
    if collection is not None:
        check_writable(collection.parent)
    if backend is not None:
        options = {
            "effort": effort,
            "trials": trials,
            "seconds": seconds,
            "margin": margin,
            "storage": storage,
            "force": force,
            "from_scratch": from_scratch,
        }
        with connected(backend) as cluster, search_bar(len(wanted), shown=progress) as show:
            found = {}
            for result in _tuned_there(wanted, cluster, store, options):
                _finish(result, collection, show)
                found[result.problem] = result
            return TuneReport(tuple(found[problem] for problem in wanted))
    if storage is None:
        storage = file_url(settings().cache_dir / STUDIES)
    with quiet_optuna(), ExitStack() as opened:
        claims = opened.enter_context(closing(Claims(storage)))
        compilers = opened.enter_context(closing(Compilers(gpus)))
        laboratories = [
            opened.enter_context(closing(Laboratory(gpu, number, budget, storage, compilers)))
            for gpu, number in zip(gpus, numbers, strict=True)
        ]
        show = opened.enter_context(search_bar(len(wanted), shown=progress))
        scout = opened.enter_context(ThreadPoolExecutor(1, "scout"))
        following = dict(zip(wanted, wanted[len(laboratories) :], strict=False))
        keeping = Lock()

        def known(laboratory: Laboratory, problem: GemmProblem) -> TuneResult | None:
            return None if force else known_result(problem, laboratory.gpu, store)

        def seeds(laboratory: Laboratory, problem: GemmProblem) -> list[GemmConfig]:
            if from_scratch:
                return []
            entries = (stored.entry for stored in store.entries())
            count = min(KNOWN, budget.trials // 4)  # most of few trials are the predictions'
            return known_configs(problem, laboratory.gpu, entries, count)

        def announce(laboratory: Laboratory, problem: GemmProblem) -> None:
            laboratory.announce(problem, seeds(laboratory, problem))

        def work(laboratory: Laboratory, problem: GemmProblem) -> TuneResult | None:
            def search() -> "SearchResult":
                ideas = seeds(laboratory, problem)
                return laboratory.search(problem, partial(show, problem), ideas)

            later = following.get(problem)
            if later is not None and known(laboratory, later) is None:
                scout.submit(announce, laboratory, later)  # compiles while this one is measured
            result = known(laboratory, problem)
            if result is None:
                result = shared_result(problem, laboratory, store, claims, force, search)
            if result is not None:
                with keeping:
                    _finish(result, collection, show)
            return result

        def end() -> None:
            for laboratory in laboratories:
                laboratory.end()
            compilers.close()

        crew = Crew([partial(work, laboratory) for laboratory in laboratories], end)
        return TuneReport(tuple(crew.run(wanted)))


def _check_devices(numbers: Sequence[int]) -> None:
    if not isinstance(numbers, Sequence) or not numbers:
        raise ArgumentError(f"devices must be a list of GPUs' numbers, got {numbers!r:.80}")
    for number in numbers:
        check_device(number)
    if len(set(numbers)) != len(numbers):
        raise ArgumentError(f"devices must name each GPU once, got {numbers!r:.80}")


def _check_left_to_workers(devices: Sequence[int] | None, storage: str | None) -> None:
    """Raise ArgumentError for what the workers of a cluster can't be told."""
    if devices is not None:
        raise ArgumentError("devices must be left out with backend: its workers use their own GPUs")
    if str(storage).startswith("sqlite"):
        raise ArgumentError(
            "storage must be left out with backend, or a server like postgresql://HOST/NAME, as an "
            f"SQLite file serves one host, got {storage!r}"
        )


def _finish(result: TuneResult, collection: Path | None, show: "SearchBar") -> None:
    if collection is not None and result.entry is not None:
        export_entries(collection, [result.entry])
    show.finish(result.problem)


@dataclass(frozen=True, slots=True)
class _Task:
    """What a Dask worker is asked: a problem, the driver's entries for it, the options of tune."""

    problem: GemmProblem
    known: tuple[CacheEntry, ...]
    options: dict[str, Any]


def _tuned_there(
    wanted: Sequence[GemmProblem], cluster: Cluster, store: CacheStore, options: dict[str, Any]
) -> Iterator[TuneResult]:
    """The results of wanted as the cluster's workers come to them, each entry stored here."""
    known: dict[GemmProblem, list[CacheEntry]] = {problem: [] for problem in wanted}
    if not options["force"]:
        for stored in store.entries():
            known.get(stored.entry.key.problem, []).append(stored.entry)
    tasks = [_Task(problem, tuple(known[problem]), options) for problem in wanted]
    for task, found in cluster.run(_tuned_on_worker, tasks):
        if isinstance(found, TuneError):
            found = TuneResult(task.problem, error=str(found))
        elif found.entry is not None and found.entry not in task.known:
            store.put(found.entry)
        yield found


def _tuned_on_worker(device: int, task: _Task) -> TuneResult:
    """The worker's part; raises TuneError when the search failed, so that another one tries."""
    gpu = detect(device)
    for entry in task.known:
        if holds(entry, task.problem, gpu):
            return TuneResult(task.problem, entry, skipped=True)
    report = tune([task.problem], devices=[device], progress=False, **task.options)
    [result] = report.results
    if result.error is not None:
        raise TuneError(result.error)
    return result
