"""The search of one problem on one GPU: seeds, then a sampler, every outcome stored when made."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import scipy.stats

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import AutoswizzleError, CandidateError, ConfigError, TuneError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.effort import Effort
from autoswizzle.search.finals import Final, RaceCall, finalists, run_final
from autoswizzle.search.history import Failure, History, Record, measured
from autoswizzle.search.measure import Measurement
from autoswizzle.search.plan import Plan, Rejection, legal_seeds
from autoswizzle.search.sampling import Branches, Proposer, SearchSpace
from autoswizzle.search.storage import quiet_optuna
from autoswizzle.simulator.ranking import Prediction, predict
from autoswizzle.simulator.resources import Resources, why_infeasible

MAX_SPILL_BYTES = 256  # of a thread: beyond it local memory traffic dominates; slow, not wrong
SERIALISED = "wgmma"  # names the products in ptxas's warning C7510 that it serialised them
POLL_S = 0.2
BATCH = 4  # trials between two looks at the whole study

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands, at its start and after each trial: trials done of those allowed,
    seconds of this run, the best and the latest outcome.
    """

    done: int
    trials: int
    seconds: float
    best: Measurement | None
    last: Measurement | Failure | None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    best: the final's winner with its confirming time, else the fastest screened. measurements: all
    that count, in trial order; infeasible: what could not be used. spearman: rank correlation of
    predicted and measured times, None below three. stopped: what ended it (trials, seconds, gain
    or space). rejected: seeds outside the space, with the reason. compile_s, measure_s, total_s:
    wall time of this run.
    """

    best: Measurement
    measurements: tuple[Measurement, ...]
    infeasible: tuple[Failure, ...]
    spearman: float | None
    stopped: str
    final: Final | None = None
    rejected: tuple[Rejection, ...] = ()
    compile_s: float = 0.0
    measure_s: float = 0.0
    total_s: float = 0.0

    @property
    def busy_share(self) -> float:
        """Share of the wall time in which the GPU measured."""
        return self.measure_s / self.total_s if self.total_s else 0.0


def search(
    problem: GemmProblem,
    gpu: Gpu,
    *,
    measure: Callable[[GemmConfig], Measurement],
    compile: Callable[[GemmConfig], Resources],  # noqa: A002 - the step's name
    predictions: Sequence[Prediction] = (),
    effort: Effort,
    storage: str | None,
    progress: Callable[[Progress], None] | None = None,
    race: RaceCall | None = None,
    seeds: Sequence[GemmConfig | Mapping[str, Any]] = (),
    branches: Branches | SearchSpace | None = None,
    revisions: Mapping[str, str] | None = None,
    prefetch: Callable[[Sequence[GemmConfig]], None] | None = None,
    lookahead: int = 1,
    sampler: str = "tpe",
    seed: int | None = None,
) -> SearchResult:
    """Find the fastest configuration of problem on gpu; needs no GPU itself.

    measure(config) and compile(config) raise CandidateError for a candidate that can't be used.
    predictions: ranked, best first. race: holds the final (finals.run_final); without it the
    fastest screened is the best. seeds: known-good settings, tried before the predictions.
    branches: what may be tried, space.branches by default. revisions: see History. prefetch: told
    the next configurations to compile, lookahead of them. seed: makes the sampler repeatable; a
    resumed study still continues with other proposals.
    Everything measured is in storage at once; calling again with the same one finishes the budget.
    Raises TuneError when no configuration of ours could be used, ArgumentError for a bad storage.
    """
    searched = (
        branches if isinstance(branches, SearchSpace) else SearchSpace(problem, gpu, branches)
    )
    legal, rejected = legal_seeds(seeds, searched)
    predicted = {item.config: item.time_us for item in predictions}
    bench = _Bench(measure, compile, gpu)
    with quiet_optuna(), closing(History(storage, searched, revisions or {})) as history:
        proposer = Proposer(searched, sampler, _entropy(seed, history.size()))
        plan = Plan(legal, list(predicted), searched, effort, proposer)
        while True:
            records = history.records()
            if progress is not None:
                progress(_progress(records, effort, bench))
            if (stopped := plan.why_stop(records)) is not None:
                break
            waiting = [record.config for record in records if record.state == "waiting"]
            for config in plan.following(records, lookahead - len(waiting)):
                history.enqueue(config, predicted.get(config) or _predicted_us(searched, config))
                waiting.append(config)
            if not waiting and any(record.state == "running" for record in records):
                time.sleep(POLL_S)  # another worker has the last ones; it may die
                history.release_dead_workers()
                continue
            if not waiting:
                stopped = "space"
                break
            if prefetch is not None:
                prefetch([config for config in waiting if config != TORCH])
            history.run_next(bench.evaluate, min(len(waiting), 1 if storage is None else BATCH))
        _require_success(records, problem, gpu)
        final = race and _final(history, records, searched, effort, bench, race)
    fastest = min(measured(records), key=lambda item: item.time_us)
    return SearchResult(
        best=final.measurement if final else fastest,
        measurements=tuple(measured(records)),
        infeasible=tuple(_failures(records)),
        spearman=predicted_rank_correlation(records),
        stopped=stopped,
        final=final,
        rejected=tuple(rejected),
        compile_s=bench.compile_s,
        measure_s=bench.measure_s,
        total_s=bench.total_s,
    )


class _Bench:
    """Tries configurations, by any thread, measuring one at a time; and clocks the steps."""

    def __init__(
        self,
        measure: Callable[[GemmConfig], Measurement],
        compile: Callable[[GemmConfig], Resources],  # noqa: A002 - the step's name
        gpu: Gpu,
    ) -> None:
        self._measure = measure
        self._compile = compile
        self._gpu = gpu
        self._turn = Lock()
        self._began = time.monotonic()
        self.compile_s = 0.0
        self.measure_s = 0.0

    @property
    def total_s(self) -> float:
        return time.monotonic() - self._began

    def evaluate(self, config: GemmConfig) -> tuple[Measurement | Failure, float]:
        """Compile, judge the resources, measure: the outcome and the seconds measured."""
        if config != TORCH:
            began = self.total_s
            resources = _attempt(config, self._compile)
            with self._turn:
                self.compile_s += self.total_s - began
            if isinstance(resources, Failure):
                return resources, 0.0
            reason = why_rejected(resources, self._gpu)
            if reason is not None:
                return Failure(config, "Infeasible", reason), 0.0
        with self.measuring():
            before = self.total_s
            return _attempt(config, self._measure), self.total_s - before

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A turn on the GPU; counts the time inside as its."""
        with self._turn:
            began = self.total_s
            try:
                yield
            finally:
                self.measure_s += self.total_s - began


def _attempt(config: GemmConfig, call: Callable[[GemmConfig], T]) -> T | Failure:
    """The result of call, or why config can't be used: one bad candidate must not end a search."""
    try:
        return call(config)
    except CandidateError as error:
        return Failure(config, error.kind, str(error))
    except ConfigError as error:
        return Failure(config, type(error).__name__, str(error))
    except AutoswizzleError:
        raise  # about the machine or the caller, not about this candidate
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise anything
        return Failure(config, type(error).__name__, str(error))


def _predicted_us(searched: SearchSpace, config: GemmConfig) -> float | None:
    try:
        return predict(searched.problem, config, searched.gpu).time_us
    except ConfigError:
        return None  # torch, or too large by the closed form


def _progress(records: Sequence[Record], effort: Effort, bench: _Bench) -> Progress:
    done = [record.outcome for record in records if record.outcome is not None]
    best = min(measured(records), key=lambda item: item.time_us, default=None)
    return Progress(len(done), effort.trials, bench.total_s, best, done[-1] if done else None)


def _failures(records: Sequence[Record]) -> list[Failure]:
    return [item.outcome for item in records if isinstance(item.outcome, Failure)]


def _require_success(records: Sequence[Record], problem: GemmProblem, gpu: Gpu) -> None:
    if any(item.config != TORCH for item in measured(records)):
        return
    counts = Counter(failure.kind for failure in _failures(records)).most_common()
    listed = ", ".join(f"{count} {kind}" for kind, count in counts) or "none is legal"
    raise TuneError(f"no configuration of {problem} could be used on {gpu.name}: {listed}")


def _final(
    history: History,
    records: Sequence[Record],
    searched: SearchSpace,
    effort: Effort,
    bench: _Bench,
    race: RaceCall,
) -> Final:
    """The final of the fastest; the stored one if it was between the same finalists as they are
    and raced in full, judged by this effort's margin.
    """
    chosen = finalists(measured(records), effort.finalists, searched.default)
    names = [[config.to_dict(), history.revision(config)] for config in chosen]
    stored = history.final or {}
    if stored.get("finalists") == names:
        with suppress(AutoswizzleError, TypeError):  # another version's
            final = Final.from_dict(stored.get("final", {}))
            if final.settled:
                return final.judged(effort.margin)
    try:
        with bench.measuring():
            final = run_final(chosen, race, effort.margin)
    except CandidateError as error:
        raise TuneError(f"the final of {searched.problem} failed: {error}") from error
    history.save_final({"finalists": names, "final": final.to_dict()})
    return final


def why_rejected(resources: Resources, gpu: Gpu) -> str | None:
    """Why a compiled kernel is not worth measuring on gpu, None when it is."""
    if resources.spill_bytes > MAX_SPILL_BYTES:
        return f"spills must be <= {MAX_SPILL_BYTES} bytes a thread, got {resources.spill_bytes}"
    serialised = next((line for line in resources.warnings if SERIALISED in line), None)
    return serialised or why_infeasible(resources, gpu)


def predicted_rank_correlation(records: Sequence[Record]) -> float | None:
    """The rank correlation of the predicted and the measured times among records."""
    return rank_correlation(
        [
            (record.predicted_us, record.time_us)
            for record in records
            if record.predicted_us is not None and record.time_us is not None
        ]
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's correlation with tied ranks averaged, None when it is undefined."""
    if len(pairs) < 3:
        return None
    predicted, measured = zip(*pairs, strict=True)
    if len(set(predicted)) == 1 or len(set(measured)) == 1:
        return None
    return float(scipy.stats.spearmanr(predicted, measured).statistic)


def _entropy(seed: int | None, trials: int) -> int:
    """The sampler's seed: a resumed study must not repeat what it proposed before."""
    return int(
        np.random.SeedSequence(None if seed is None else [seed, trials]).generate_state(1)[0]
    )
