"""Opening the storage of studies: any Optuna storage URL, an SQLite file by default."""

import logging
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.event
import sqlalchemy.exc

from autoswizzle.errors import ArgumentError, TuneError
from autoswizzle.search.salvage import damage, restore, salvage

HEARTBEAT_S = 20  # a worker says this often that it is alive
GRACE_S = 90  # silence after which a worker's trial counts as interrupted
LIBPQ = ("postgresql://", "postgresql+psycopg://", "postgresql+psycopg2://")
LOCK_WAIT_S = 60  # for another process's transaction in the same SQLite file

CREATE_ATTEMPTS = 10  # each fails only if another process makes one more of the tables meanwhile

_MADE_MEANWHILE = ("already exists", "UNIQUE constraint failed", "duplicate key")
_log = logging.getLogger(__name__)


def file_url(path: Path | str, **query: str) -> str:
    """The URL of an SQLite file, whatever characters are in its name."""
    url = sqlalchemy.URL.create("sqlite", database=str(path), query=query)
    return url.render_as_string(hide_password=False)


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """The storage of a URL, with heartbeats.

    A damaged SQLite file is kept aside, with a warning, and a new one started with the trials that
    can still be read.
    """
    path = Path(sqlalchemy.make_url(url).database or "")
    engine: dict[str, Any] = {}
    wrong = None
    if url.startswith("sqlite"):
        engine = {"connect_args": {"timeout": LOCK_WAIT_S}}
        wrong = damage(path, LOCK_WAIT_S) if path.is_file() else None
    elif url.startswith(LIBPQ):  # else a database without an encoding gives bytes for text
        engine = {"connect_args": {"client_encoding": "utf8"}}
    if wrong is not None:
        aside = _set_aside(path)
        saved = salvage(aside)
    storage = _create(url, engine)
    if url.startswith("sqlite"):
        # A dozen commits a trial: with a write-ahead log they survive a kill without a disk sync.
        sqlalchemy.event.listen(storage.engine, "connect", _log_ahead)
        # SQLite has no row locks: two processes could both read a waiting trial and both start it.
        sqlalchemy.event.listen(storage.engine, "begin", _lock)
        storage.engine.dispose()
    if wrong is not None:
        kept = restore(saved, storage)
        text = "%s is damaged (%s): kept as %s, a new one holds the %d trials that can be read"
        _log.warning(text, path, wrong, aside.name, kept)
    return storage


def _create(url: str, engine: dict[str, Any]) -> optuna.storages.RDBStorage:
    for attempt in range(1, CREATE_ATTEMPTS + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return optuna.storages.RDBStorage(
                    url,
                    engine_kwargs=engine,
                    heartbeat_interval=HEARTBEAT_S,
                    grace_period=GRACE_S,
                )
        except sqlalchemy.exc.DBAPIError as error:
            made_meanwhile = any(words in str(error) for words in _MADE_MEANWHILE)
            if not made_meanwhile or attempt == CREATE_ATTEMPTS:
                raise
            time.sleep(0.1 * attempt)
    raise AssertionError


def _log_ahead(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.isolation_level = None  # no BEGIN of the driver's own: it comes too late, at a write


def _lock(connection: sqlalchemy.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm", "-journal"):  # what SQLite keeps beside its file
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside


@contextmanager
def storage_errors(storage: str | None) -> Iterator[None]:
    """Turn a malformed URL into ArgumentError and a storage that can't be used into TuneError."""
    try:
        yield
    except (sqlalchemy.exc.ArgumentError, ImportError) as error:
        raise ArgumentError(
            f"storage must be an Optuna storage URL like sqlite:///FILE, got {storage!r} ({error})"
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, OSError) as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        raise TuneError(f"storage {without_password(storage)} can't be used: {cause}") from error


def without_password(url: str | None) -> str:
    """A well-formed storage URL, fit to be shown."""
    return str(url and sqlalchemy.make_url(url).render_as_string(hide_password=True))


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Optuna reports each trial on stderr; the caller's progress does that here."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
