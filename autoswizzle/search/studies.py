"""Every stored study, read as it is: nothing is written, repaired or waited for."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
import sqlalchemy

from autoswizzle.config import TORCH
from autoswizzle.errors import ArgumentError, AutoswizzleError, ProblemError, TuneError
from autoswizzle.problem import GemmProblem
from autoswizzle.search.finals import Final
from autoswizzle.search.history import Failure, Record, measured, record_of
from autoswizzle.search.measure import Measurement
from autoswizzle.search.statistics import checked
from autoswizzle.search.storage import file_url, quiet_optuna, storage_errors, without_password
from autoswizzle.search.study import predicted_rank_correlation

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """What was tried for one problem on one GPU.

    chip: see Gpu.chip. records: the trials with an outcome, in order, of each kernel's latest
    revision; outdated: how many there are of others. final: the last one, if there was one.
    """

    chip: str
    problem: GemmProblem
    records: tuple[Record, ...]
    outdated: int = 0
    final: Final | None = None

    @property
    def measurements(self) -> list[Measurement]:
        """The trials that were timed, torch's included."""
        return measured(self.records)

    @property
    def infeasible(self) -> Counter[str]:
        """How many could not be used, by class of failure."""
        outcomes = (record.outcome for record in self.records)
        kinds = (item.kind for item in outcomes if isinstance(item, Failure))
        return Counter(kind if kind.isprintable() else ascii(kind) for kind in kinds)

    @property
    def measure_s(self) -> float:
        """Seconds the GPU measured."""
        return sum(record.seconds for record in self.records)

    @property
    def torch_us(self) -> float | None:
        """The screening time of torch, None if it was not tried."""
        times = [item.time_us for item in self.measurements if item.config == TORCH]
        return min(times, default=None)

    @property
    def best(self) -> Measurement | None:
        """The fastest of ours when screened."""
        ours = (item for item in self.measurements if item.config != TORCH)
        return min(ours, key=lambda item: item.time_us, default=None)

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """Each trial, from 1, at which the fastest of ours became faster, and that time in us."""
        steps: list[tuple[int, float]] = []
        for place, record in enumerate(self.records, 1):
            time_us = None if record.config == TORCH else record.time_us
            if time_us is not None and (not steps or time_us < steps[-1][1]):
                steps.append((place, time_us))
        return steps

    @cached_property
    def spearman(self) -> float | None:
        """Rank correlation of predicted and measured times, None where it is undefined."""
        return predicted_rank_correlation(self.records)


def read_studies(url: str) -> list[Study]:
    """The studies of a storage that hold an outcome; a damaged one is logged and left out.

    url: an Optuna storage URL. Raises ArgumentError for a malformed one or an SQLite file that does
    not exist, TuneError for a storage that can't be read.
    """
    with storage_errors(url), quiet_optuna():
        named = sqlalchemy.make_url(url)
        readable = url
        if named.get_backend_name() == "sqlite":
            if not named.database or not Path(named.database).exists():
                raise ArgumentError(
                    f"storage must be one that exists, got {without_password(url)!r}"
                )
            file = quote(str(Path(named.database).absolute()))
            readable = file_url(f"file:{file}", mode="ro", uri="true")
        try:
            storage = optuna.storages.RDBStorage(readable, skip_table_creation=True)
        except RuntimeError as error:  # of another version of Optuna
            raise TuneError(f"storage {without_password(url)} can't be read: {error}") from error
        try:
            return list(_studies(storage))
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _studies(storage: optuna.storages.RDBStorage) -> Iterator[Study]:
    for stored in storage.get_all_studies():
        chip, _, text = stored.study_name.partition(" ")
        try:
            problem = GemmProblem.parse(text)
        except ProblemError:
            continue  # another kind of study
        try:
            trials = storage.get_all_trials(stored._study_id, deepcopy=False)
            study = _study(chip, problem, trials, stored.user_attrs)
        except (ValueError, LookupError, optuna.exceptions.OptunaError) as error:
            _log.warning("ignoring study %.200r: %.300s", stored.study_name, error)
            continue
        if study.records and chip.isprintable():
            yield study


def _study(
    chip: str,
    problem: GemmProblem,
    trials: Sequence[optuna.trial.FrozenTrial],
    attributes: Mapping[str, Any],
) -> Study:
    found = [record_of(trial) for trial in trials]
    done = [record for record in found if record is not None and record.outcome is not None]
    latest = {record.config.kernel: record.revision for record in done}
    current = [record for record in done if record.revision == latest[record.config.kernel]]
    final = _final(attributes.get("final"))
    return Study(chip, problem, tuple(current), len(done) - len(current), final)


def _final(stored: Any) -> Final | None:  # noqa: ANN401  # whatever the storage holds
    try:
        final = Final.from_dict(stored["final"])
        checked((final.ratio, final.ratio_low, final.ratio_high))
    except (AutoswizzleError, KeyError, TypeError):
        return None  # none, or another version's
    return final
