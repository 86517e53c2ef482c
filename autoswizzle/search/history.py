"""The stored study of one problem on one GPU: a queue of configurations and a log of outcomes.

An Optuna study holds one trial for each configuration. Its user attributes carry the configuration
and the outcome; it has no Optuna parameters, whose choices could never change later. Trials are
enqueued with their configuration in one transaction, so their numbers decide between workers that
enqueue the same one: only the lowest runs.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import optuna

from autoswizzle.config import GemmConfig
from autoswizzle.errors import AutoswizzleError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.liveness import is_alive, this_process
from autoswizzle.search.measure import Measurement
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.search.statistics import is_number
from autoswizzle.search.storage import open_storage, storage_errors

MAX_INTERRUPTIONS = 2  # a configuration interrupted this often is not tried again

_State = optuna.trial.TrialState
_STATES = {_State.WAITING: "waiting", _State.RUNNING: "running"}


@dataclass(frozen=True, slots=True)
class Failure:
    """A configuration that could not be used: the class of failure and the message."""

    config: GemmConfig
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """One stored trial.

    state: "waiting", "running" or "finished". outcome: None unless finished, and None then if the
    trial was interrupted. seconds: the GPU's, measuring. revision: what the kernel's times depend
    on, see History.
    """

    number: int
    config: GemmConfig
    state: str
    outcome: Measurement | Failure | None
    seconds: float
    predicted_us: float | None
    revision: str

    @property
    def time_us(self) -> float | None:
        """The measured time, None if there is none."""
        return self.outcome.time_us if isinstance(self.outcome, Measurement) else None


# Tries a configuration: the outcome, and the seconds that the GPU measured.
Evaluate = Callable[[GemmConfig], tuple[Measurement | Failure, float]]


class History:
    """The trials of one problem on one GPU in a storage.

    storage: an Optuna storage URL, None for memory. revisions: for each kernel family what its
    times depend on (source hash, compiler); trials of another revision do not count.
    Raises ArgumentError for a malformed URL, TuneError for a storage that can't be opened.
    """

    def __init__(
        self, storage: str | None, searched: SearchSpace, revisions: Mapping[str, str]
    ) -> None:
        self._space = searched
        self._revisions = revisions
        self._finished: dict[int, Record | None] = {}
        self._seen: dict[int, Record] = {}
        self.name = study_name(searched.problem, searched.gpu)
        with storage_errors(storage):
            self._storage = None if storage is None else open_storage(storage)
            self._study = optuna.create_study(
                study_name=self.name,
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(),  # never asked for a parameter
                load_if_exists=True,
            )
            self.release_dead_workers()

    def close(self) -> None:
        """Close the connections to the storage."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()

    def records(self) -> list[Record]:
        """Every stored trial that counts in this space, in the order of their numbers."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if trial.number not in self._finished:
                record = self._record(trial)
                if not trial.state.is_finished():
                    found.append(record)
                    continue
                self._finished[trial.number] = record
            found.append(self._finished[trial.number])
        records = [record for record in found if record is not None]
        self._seen = {record.number: record for record in records}
        return records

    def revision(self, config: GemmConfig) -> str:
        """What the times of config depend on here."""
        return self._revisions.get(config.kernel, "")

    def size(self) -> int:
        """How many trials the study holds, those that do not count included."""
        return len(self._study.get_trials(deepcopy=False))

    def enqueue(self, config: GemmConfig, predicted_us: float | None = None) -> None:
        """Store config as the next to try."""
        attributes = {
            "config": config.to_dict(),
            "revision": self.revision(config),
            "predicted_us": predicted_us,
        }
        self._study.enqueue_trial({}, user_attrs=attributes)

    def run_next(self, evaluate: Evaluate, count: int = 1) -> None:
        """Try the first `count` waiting configurations and store each outcome when it is there.

        Two at a time, by threads: one may be measured while the other is taken or stored. Those
        that another worker takes are left to it. What evaluate raises is raised, and leaves the
        trial interrupted.
        """

        def run_one(_: int) -> None:
            self._study.optimize(lambda trial: self._run(trial, evaluate), n_trials=1)

        if count == 1:
            run_one(0)
            return
        with ThreadPoolExecutor(2, "trial") as threads:
            deque(threads.map(run_one, range(count)), maxlen=0)  # raises what the first raised

    def _run(self, trial: optuna.Trial, evaluate: Evaluate) -> float:
        if trial.number not in self._seen:  # else what was enqueued before it was seen as well
            self.records()
        record = self._seen.get(trial.number)
        if record is None or any(
            other.config == record.config and other.number < record.number and _claims(other)
            for other in self._seen.values()
        ):
            raise optuna.TrialPruned
        trial.set_user_attr("worker", this_process())
        outcome, seconds = evaluate(record.config)
        trial.set_user_attr("seconds", seconds)
        trial.set_user_attr("outcome", _encode(outcome))
        if isinstance(outcome, Failure):
            raise optuna.TrialPruned
        return outcome.time_us

    def _record(self, trial: optuna.trial.FrozenTrial) -> Record | None:
        record = record_of(trial)
        if record is None or record.revision != self.revision(record.config):
            return None
        return None if self._space.why_outside(record.config) is not None else record

    def release_dead_workers(self) -> None:
        """End the trials of processes that died; what they had measured counts."""
        for trial in self._study.get_trials(deepcopy=False, states=(_State.RUNNING,)):
            if is_alive(trial.user_attrs.get("worker"), trial.datetime_start):
                continue
            outcome = trial.user_attrs.get("outcome")
            measured = isinstance(outcome, dict) and outcome.get("time_us")
            state = _State.COMPLETE if measured else _State.PRUNED if outcome else _State.FAIL
            with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another process was first
                self._study.tell(trial.number, measured or None, state=state, skip_if_finished=True)

    @property
    def final(self) -> dict[str, Any] | None:
        """The stored final, as save_final wrote it."""
        stored = self._study.user_attrs.get("final")
        return stored if isinstance(stored, dict) else None

    def save_final(self, final: dict[str, Any]) -> None:
        """Store the outcome of the final."""
        self._study.set_user_attr("final", final)


def record_of(trial: optuna.trial.FrozenTrial) -> Record | None:
    """The record a stored trial is; None for one of another version, and for a repeated one."""
    stored = trial.user_attrs
    try:
        config = GemmConfig.from_dict(stored["config"])
        outcome = _decode(config, stored.get("outcome"))
    except (AutoswizzleError, KeyError, TypeError):
        return None
    seconds, predicted_us = stored.get("seconds", 0.0), stored.get("predicted_us")
    if not (is_number(seconds) and (predicted_us is None or is_number(predicted_us))):
        return None
    if trial.state == _State.PRUNED and outcome is None:
        return None
    return Record(
        trial.number,
        config,
        _STATES.get(trial.state, "finished"),
        outcome,
        seconds,
        predicted_us,
        stored.get("revision", ""),
    )


def study_name(problem: GemmProblem, gpu: Gpu) -> str:
    """The study's name: the GPU facts that matter, not its marketing name, and the problem."""
    return f"{gpu.chip} {problem}"


def measured(records: Sequence[Record]) -> list[Measurement]:
    """The measurements among the outcomes."""
    return [item.outcome for item in records if isinstance(item.outcome, Measurement)]


def taken(records: Sequence[Record]) -> set[GemmConfig]:
    """The configurations that are not to be tried (again)."""
    stopped = Counter(record.config for record in records if not _claims(record))
    given_up = {config for config, times in stopped.items() if times >= MAX_INTERRUPTIONS}
    return {record.config for record in records if _claims(record)} | given_up


def tried(records: Sequence[Record]) -> set[GemmConfig]:
    """The configurations with an outcome, or given up."""
    waiting = {record.config for record in records if record.state != "finished"}
    return taken(records) - waiting


def interrupted(records: Sequence[Record]) -> list[GemmConfig]:
    """The configurations whose trial was interrupted and that may be tried once more."""
    held = taken(records)
    return [item.config for item in records if not _claims(item) and item.config not in held]


def _claims(record: Record) -> bool:
    return record.state != "finished" or record.outcome is not None


def _encode(outcome: Measurement | Failure) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        return {"kind": outcome.kind, "reason": outcome.reason}
    return outcome.to_dict()


def _decode(config: GemmConfig, stored: dict[str, Any] | None) -> Measurement | Failure | None:
    if stored is None:
        return None
    if "kind" in stored:
        return Failure(config, str(stored["kind"]), str(stored["reason"]))
    return Measurement.from_dict(stored)
