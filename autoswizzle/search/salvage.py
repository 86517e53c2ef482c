"""Whether a SQLite file of studies is damaged, and what it still holds of finished trials.

A page that can't be read costs the rows on it, a value that can't be parsed its row alone.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna

MAX_FAILURES = 20_000  # reads that fail before a table is given up, about 100 pages of rows

_State = optuna.trial.TrialState
_NOT_ASCII = "{0} GLOB '*[^ -~]*'"
_NOT_JSON = f"NOT json_valid({{0}}) OR {_NOT_ASCII}"
_STATES = ", ".join(f"'{state.name}'" for state in _State)
_Rows = list[tuple[Any, ...]]


def _no_date(_: bytes) -> None:
    raise ValueError("no date")


# (table, column, rows worth a look, what reads a value or raises ValueError or KeyError)
_VALUES: tuple[tuple[str, str, str, Callable[[bytes], object]], ...] = (
    ("trial_user_attributes", "value_json", _NOT_JSON, json.loads),
    ("study_user_attributes", "value_json", _NOT_JSON, json.loads),
    ("trial_user_attributes", "key", _NOT_ASCII, bytes.decode),
    ("study_user_attributes", "key", _NOT_ASCII, bytes.decode),
    ("studies", "study_name", _NOT_ASCII, bytes.decode),
    ("trials", "state", f"{{0}} NOT IN ({_STATES})", lambda name: _State[name.decode()]),
    ("trials", "datetime_start", "datetime({0}) IS NULL AND {0} NOT NULL", _no_date),
    ("trials", "datetime_complete", "datetime({0}) IS NULL AND {0} NOT NULL", _no_date),
)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A study's attributes, and its trials with an outcome in their order."""

    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    trials: list[optuna.trial.FrozenTrial] = field(default_factory=list)


def damage(path: Path, timeout_s: float) -> str | None:
    """What is wrong with a file of studies; None if nothing is, or if it can't be told now."""
    try:
        with closing(sqlite3.connect(path, timeout=timeout_s)) as connection:
            verdict: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            return _unreadable(connection) if verdict == "ok" else " ".join(verdict.split())
    except sqlite3.OperationalError:
        return None  # locked or no file of studies: opening it says so
    except sqlite3.DatabaseError as error:
        return str(error)


def _unreadable(connection: sqlite3.Connection) -> str | None:
    connection.text_factory = bytes
    for table, column, suspicious, read in _VALUES:
        query = f"SELECT {column} FROM {table} WHERE {suspicious.format(column)}"
        for (value,) in connection.execute(query):
            try:
                read(value)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return f"{table}.{column} can't be {value!r:.60}"
    return None


def salvage(path: Path) -> list[Salvaged]:
    """The studies in a damaged file, as far as they can be read; it is left as it is."""
    log_ahead = Path(f"{path}-wal").exists()
    access = "mode=ro" if log_ahead else "immutable=1"  # without the log, no file is made beside it
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{access}", uri=True)) as connection:
        connection.execute("PRAGMA writable_schema=ON")  # reads files that have lost their end
        last = path.stat().st_size // 8  # a row takes more bytes

        def rows(select: str) -> _Rows:
            return list(_rows(connection, select, last))

        # Of studies and trials, an index holds all that counts a second time.
        studies: dict[int, Salvaged] = {}
        for index in ("NOT INDEXED", "INDEXED BY ix_studies_study_name"):
            for number, name in rows(f"SELECT study_id, study_name FROM studies {index}"):
                if isinstance(name, str):
                    studies[number] = Salvaged(name)
        study_of: dict[int, int] = {}
        for index in ("NOT INDEXED", "INDEXED BY ix_trials_study_id"):
            study_of.update(rows(f"SELECT trial_id, study_id FROM trials {index}"))
        select = "SELECT {0}, key, value_json FROM {1}_user_attributes"
        of_studies = _attributes(rows(select.format("study_id", "study")))
        of_trials = _attributes(rows(select.format("trial_id", "trial")))
    for number, study in studies.items():
        study.attributes.update(of_studies[number])
    for number in sorted(study_of):
        trial = _finished(of_trials[number])
        if trial is not None and study_of[number] in studies:
            studies[study_of[number]].trials.append(trial)
    return list(studies.values())


def _rows(connection: sqlite3.Connection, select: str, last: int) -> Iterator[tuple[Any, ...]]:
    """The rows that can be read: a range of them in which one can't is read in halves."""
    ranges, failures = [(1, last)], 0
    while ranges and failures < MAX_FAILURES:
        low, high = ranges.pop()
        try:
            yield from connection.execute(
                f"{select} WHERE rowid BETWEEN ? AND ?", (low, high)
            ).fetchall()
        except sqlite3.DatabaseError:
            failures += 1
            if low < high:
                middle = (low + high) // 2
                ranges += [(middle + 1, high), (low, middle)]


def _attributes(rows: _Rows) -> defaultdict[int, dict[str, Any]]:
    found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for owner, key, text in rows:
        try:
            found[owner][str(key)] = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            continue
    return found


def _finished(attributes: dict[str, Any]) -> optuna.trial.FrozenTrial | None:
    """The trial with these attributes, if they hold what it found."""
    outcome = attributes.get("outcome")
    if "config" not in attributes or not isinstance(outcome, dict):
        return None
    time_us = outcome.get("time_us")
    if not isinstance(time_us, (int, float)):
        return optuna.trial.create_trial(state=_State.PRUNED, user_attrs=attributes)
    return optuna.trial.create_trial(state=_State.COMPLETE, value=time_us, user_attrs=attributes)


def restore(studies: list[Salvaged], storage: optuna.storages.BaseStorage) -> int:
    """Put studies into a new storage; returns how many trials they have."""
    for study in studies:
        created = optuna.create_study(study_name=study.name, storage=storage, load_if_exists=True)
        for key, value in study.attributes.items():
            created.set_user_attr(key, value)
        created.add_trials(study.trials)
    return sum(len(study.trials) for study in studies)
