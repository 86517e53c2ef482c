"""The places entries are looked up in, and the user's folder they are kept in."""

import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from autoswizzle.cache.entry import FASTEST, SCHEMA, CacheEntry, dump_json
from autoswizzle.cache.files import (
    MAX_BYTES,
    check_writable,
    keep_aside,
    locked,
    read_json,
    reason,
    write_atomic,
)
from autoswizzle.cache.index import Index, Stored, read_entries
from autoswizzle.cache.key import CacheKey
from autoswizzle.errors import ArgumentError, CacheError, SchemaError
from autoswizzle.settings import settings

SHIPPED = Path(__file__).parent / "shipped"
EXTENTS = ("batch", "m", "n", "k")

SourceOf = Callable[[str], str | None]  # the current source hash of a family, None: no such family


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The entry closest to a key that has none: differences maps field to (wanted, found)."""

    stored: Stored
    differences: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        found = self.stored.entry
        facts = ", ".join(
            f"{name}: wanted {want}, found {have}"
            for name, (want, have) in self.differences.items()
        )
        return f"{found.key.problem} -> {found.config} ({self.stored.place}; {facts})"


class CacheStore:
    """Tuned entries: read-only locations first, then the user's folder, then those shipped.

    user_dir: the folder put writes in. read_only: files or folders, in order of preference.
    Safe to use from several threads and processes; a location that can't be used is logged once.
    """

    def __init__(
        self, user_dir: Path, read_only: Sequence[Path] = (), *, shipped: bool = True
    ) -> None:
        self.user_dir = user_dir
        self._indexes = [Index(path, "read-only") for path in read_only]
        self._indexes.append(Index(user_dir, "user"))
        if shipped:
            self._indexes.append(Index(SHIPPED, "shipped"))
        self._unsaved: dict[str, CacheEntry] = {}  # by digest: put here, not on disk
        self._listed = False
        self._lock = RLock()
        self._watchers: list[Callable[[], None]] = []

    def get(self, key: CacheKey, source_of: SourceOf | None = None) -> Stored | None:
        """The measured entry for key, from the first place that has one that holds, or None.

        source_of: an entry holds if its source is that of its own kernel family; without it, if it
        is the key's. A key not found lists the places again, so other processes' entries are seen.
        """
        with self._lock:
            fresh = self._list()
            found = self._find(key, source_of)
            if found is None and not fresh:
                self._listed = False
                self._list()
                found = self._find(key, source_of)
            return found

    def around(
        self, key: CacheKey, source_of: SourceOf | None = None
    ) -> tuple[Stored | None, Stored | None]:
        """The closest entries with m/2 <= m_lo < m and m < m_hi <= 2m, all else as in key."""
        m = key.problem.m
        with self._lock:
            extents = self.extents(key)
            below = sorted((x for x in extents if m <= 2 * x < 2 * m), reverse=True)
            above = sorted(x for x in extents if m < x <= 2 * m)
            return self._first(key, below, source_of), self._first(key, above, source_of)

    def extents(self, key: CacheKey) -> set[int]:
        """Every m with an entry, of any source and origin, that agrees with key in all else."""
        with self._lock:
            self._list()
            found = {e.key.problem.m for e in self._unsaved.values() if e.key.stem == key.stem}
            return found.union(*(index.extents(key.stem) for index in self._indexes))

    def entries(self) -> Iterator[Stored]:
        """Every usable entry of every place, predicted and outdated ones included."""
        with self._lock:
            self._list()
            found = [stored for index in self._indexes for stored in index.all()]
            found += [Stored(entry, "user") for entry in self._unsaved.values()]
        return iter(found)

    def nearest(self, key: CacheKey, source_of: SourceOf | None = None) -> NearMiss | None:
        """The entry that differs from key in the fewest fields, then the closest in size."""
        misses = (
            NearMiss(stored, _differences(key, stored, source_of)) for stored in self.entries()
        )
        return min((miss for miss in misses if miss.differences), key=_distance, default=None)

    def put(self, entry: CacheEntry) -> Path:
        """Keep entry in the user's folder, in place of an older one of its key; returns its file.

        A damaged file of that name is kept aside. Raises CacheError, SchemaError when a file of
        another format version has the name; this store still serves the entry then.
        """
        path = self.user_dir / entry.key.file_name
        with self._lock:
            self._unsaved[entry.key.digest] = entry
            self._changed()
            extra = _make_way(path, entry.key)
            write_atomic(path, replace(entry, extra={**extra, **entry.extra}).to_json())
            del self._unsaved[entry.key.digest]
        return path

    def add_read_only(self, path: Path) -> int:
        """Search a file or folder before every other place; returns its number of entries.

        Raises CacheError when it holds no usable entry.
        """
        try:
            path.stat()
        except OSError as error:
            raise CacheError(f"cannot read {path}: {reason(error)}") from error
        index = Index(path, "read-only")
        index.refresh()
        count = sum(1 for _ in index.all())
        if not count:
            why = "no usable entry" if path.is_dir() else read_entries(path)[1]
            raise CacheError(f"cannot use {path}: {why or 'no entries'}")
        with self._lock:
            self._indexes.insert(0, index)
            self._changed()
        return count

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call watcher whenever an entry or a place is added here, so that memos are dropped."""
        self._watchers.append(watcher)

    def check_writable(self) -> None:
        """Raises CacheError, naming the user's folder, when put could not write there."""
        check_writable(self.user_dir)

    def _changed(self) -> None:
        self._listed = False
        for watcher in self._watchers:
            watcher()

    def _list(self) -> bool:
        """List every place unless that was done; whether it was done now."""
        if self._listed:
            return False
        for index in self._indexes:
            index.refresh()
        self._listed = True
        return True

    def _find(self, key: CacheKey, source_of: SourceOf | None) -> Stored | None:
        stem, m = key.stem, key.problem.m
        unsaved = [entry for entry in self._unsaved.values() if entry.key.stem == stem]
        for index in self._indexes:
            stored = index.at(stem, m)
            if index.place == "user":
                here = [Stored(entry, "user") for entry in unsaved if entry.key.problem.m == m]
                stored = here + stored
            holding = [item for item in stored if _holds(item.entry, key, source_of)]
            if holding:
                return max(holding, key=lambda item: item.entry.date)
        return None

    def _first(
        self, key: CacheKey, extents: Iterable[int], source_of: SourceOf | None
    ) -> Stored | None:
        keys = (replace(key, problem=key.problem.with_m(m)) for m in extents)
        return next(filter(None, (self._find(near, source_of) for near in keys)), None)


@lru_cache(maxsize=1)
def shared_store() -> CacheStore:
    """The store of this process, in the places its settings name."""
    return CacheStore(settings().cache_dir, settings().cache_path)


def check_cache_file(path: Path) -> None:
    """Raise unless path is a cache file, or a new one in a folder that can be made.

    ArgumentError for another file's content, CacheError for what can't be written.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return  # a new file, in a folder that writing makes or cannot make
    except OSError as error:
        raise CacheError(f"cannot write {path}: {reason(error)}") from error
    if stat.S_ISDIR(mode):
        raise ArgumentError(f"the output must be a file, got the folder '{path}'")
    if not stat.S_ISREG(mode):
        raise CacheError(f"cannot write {path}: not a regular file")
    problem = read_entries(path)[1]
    if problem:
        raise ArgumentError(
            f"the output must be a cache file or a new one, got '{path}': {problem}"
        )


def export_entries(path: Path, entries: Iterable[CacheEntry]) -> int:
    """Merge entries into one sorted JSON file, which may exist; returns how many it then has.

    Of two entries of one key the better measured stays. Raises CacheError, leaving the file as it
    is, when it is no cache file, can't be written or would be too large to read.
    """
    check_writable(path.parent)
    with locked(path.parent):
        others: dict[str, Any] = {}
        old: list[CacheEntry] = []
        if os.path.isfile(path):  # noqa: PTH113  # False, not an error, for what names no file
            old, problem = read_entries(path)
            if problem:
                raise CacheError(f"cannot add to {path}: {problem}")
            content = read_json(path)
            if isinstance(content, dict) and "entries" in content:
                others = content
        merged: dict[str, CacheEntry] = {}
        for entry in [*old, *entries]:
            rival = merged.setdefault(entry.key.digest, entry)
            if entry.better_than(rival):
                merged[entry.key.digest] = entry
        ordered = sorted(merged.values(), key=lambda entry: tuple(map(str, _order(entry.key))))
        data = {**others, "schema": SCHEMA, "entries": [entry.to_dict() for entry in ordered]}
        text = dump_json(data)
        if len(text) > MAX_BYTES:
            too_many = (
                f"{len(ordered)} entries in {len(text)} bytes, more than the {MAX_BYTES} read"
            )
            raise CacheError(f"cannot write {path}: {too_many}")
        write_atomic(path, text)
    return len(ordered)


def _order(key: CacheKey) -> tuple[Any, ...]:
    flat = key.flat()
    sizes = [f"{flat.pop(name):010}" for name in ("n", "k", "batch", "m")]
    return (*[flat[name] for name in sorted(flat)], *sizes)


def _make_way(path: Path, key: CacheKey) -> dict[str, Any]:
    """Unknown fields of the entry now in path, for another one; a damaged file is copied aside."""
    if not os.path.exists(path):  # noqa: PTH110  # False, not an error, for what names no file
        return {}
    try:
        old = CacheEntry.from_dict(read_json(path))
    except SchemaError as error:
        raise SchemaError(f"cannot write {path}: {error}") from None
    except CacheError:
        old = None
    if old is None or old.key != key:
        keep_aside(path)
        return {}
    return {name: value for name, value in old.extra.items() if name not in FASTEST}


def _holds(entry: CacheEntry, key: CacheKey, source_of: SourceOf | None) -> bool:
    wanted = key.source if source_of is None else source_of(entry.config.kernel)
    return entry.origin == "measured" and entry.key.source == wanted


def _differences(
    key: CacheKey, stored: Stored, source_of: SourceOf | None
) -> dict[str, tuple[Any, Any]]:
    entry = stored.entry
    wanted, found = key.flat(), entry.key.flat()
    if source_of is not None:
        wanted["source"] = source_of(entry.config.kernel)
    wanted["origin"], found["origin"] = "measured", entry.origin
    return {name: (wanted[name], found[name]) for name in wanted if wanted[name] != found[name]}


def _distance(miss: NearMiss) -> tuple[int, float]:
    sizes = (miss.differences.get(name, (1, 1)) for name in EXTENTS)
    return len(miss.differences), sum(abs(math.log(want / have)) for want, have in sizes)
