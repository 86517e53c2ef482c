"""What one cache location holds: listed once, each file read when it is first needed."""

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoswizzle.cache.entry import SCHEMA, CacheEntry
from autoswizzle.cache.files import read_json, reason
from autoswizzle.errors import CacheError

_log = logging.getLogger(__name__)
_Slots = dict[tuple[str, int], list[CacheEntry]]  # by stem and m
_ENTRY_NAME = re.compile(r"[^.]+\.([0-9a-f]{32})\.([0-9]{1,10})\.([0-9a-f]{16})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry, the place it came from (read-only, user, shipped) and its file, if any."""

    entry: CacheEntry
    place: str
    path: Path | None = None


class Index:
    """The entries of one folder or file.

    An entry file names its own stem and m (CacheKey.file_name), so a lookup reads that file alone.
    Any other .json file is a collection, read whole when it is listed. A file that can't be used is
    logged once, with its path and the reason, and never altered.
    """

    def __init__(self, path: Path, place: str) -> None:
        self.path, self.place = path, place
        self._signatures: dict[Path, tuple[int, ...]] = {}
        self._names: dict[tuple[str, int], list[Path]] = {}  # entry files by stem and m
        self._read: dict[Path, _Slots] = {}
        self._warned: set[Path] = set()

    def refresh(self) -> None:
        """List the location again; forget files that changed or went."""
        seen = dict(sorted(self._list()))  # every process, on any host, sees them in this order
        for path in [path for path, sign in self._signatures.items() if seen.get(path) != sign]:
            self._read.pop(path, None)
        self._signatures = seen
        self._names = {}
        for path in seen:
            if name := self._entry_name(path):
                self._names.setdefault((name[1], int(name[2])), []).append(path)
            elif path not in self._read:
                self._slots(path)

    def at(self, stem: str, m: int) -> list[Stored]:
        """The entries for one stem and m."""
        paths = [*self._names.get((stem[:32], m), ()), *self._collections()]
        return [
            Stored(entry, self.place, path)
            for path in paths
            for entry in self._slots(path).get((stem, m), ())
        ]

    def extents(self, stem: str) -> set[int]:
        """Every m that has an entry of one stem."""
        named = {m for prefix, m in self._names if prefix == stem[:32]}
        collected = {slot for path in self._collections() for slot in self._read[path]}
        return named | {m for found, m in collected if found == stem}

    def all(self) -> Iterator[Stored]:
        """Every usable entry, in the order of the file names."""
        for path in sorted(self._signatures):
            for entries in self._slots(path).values():
                yield from (Stored(entry, self.place, path) for entry in entries)

    def _collections(self) -> list[Path]:
        return [path for path in self._read if self._entry_name(path) is None]

    def _slots(self, path: Path) -> _Slots:
        if path not in self._read:
            entries, problem = read_entries(path)
            if self._entry_name(path) and any(e.key.file_name != path.name for e in entries):
                entries, problem = [], "its name belongs to another key"
            if problem:
                self._warn(path, problem)
            slots: _Slots = {}
            self._read[path] = slots
            for entry in entries:
                slots.setdefault((entry.key.stem, entry.key.problem.m), []).append(entry)
        return self._read[path]

    def _entry_name(self, path: Path) -> re.Match[str] | None:
        return None if path == self.path else _ENTRY_NAME.fullmatch(path.name)

    def _list(self) -> Iterator[tuple[Path, tuple[int, ...]]]:
        # os's is False, where Path's raises, for a name too long and below a folder out of reach
        if self.place != "user" and os.path.isfile(self.path):  # noqa: PTH113
            yield self.path, _signature(self.path)
            return
        try:
            with os.scandir(self.path) as listing:
                for item in listing:
                    if item.name.endswith(".json") and not item.name.startswith("."):
                        yield Path(item.path), _signature(Path(item.path))
        except OSError as error:
            if self.place == "read-only" or not isinstance(error, FileNotFoundError):
                self._warn(self.path, reason(error))

    def _warn(self, path: Path, problem: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            _log.warning("ignoring cache file %s: %.300s", path, problem)


def read_entries(path: Path) -> tuple[list[CacheEntry], str]:
    """The usable entries of an entry file or a collection, and what is wrong with the others."""
    try:
        content = read_json(path)
    except CacheError as error:
        return [], str(error)
    items: list[object] = [content]
    if isinstance(content, dict) and isinstance(content.get("entries"), list):
        if content.get("schema") != SCHEMA:
            return [], f"schema must be {SCHEMA}, got {content.get('schema')!r:.80}"
        items = content["entries"]
    entries, problems = [], []
    for item in items:
        try:
            entries.append(CacheEntry.from_dict(item))
        except CacheError as error:
            problems.append(str(error))
    if not problems:
        return entries, ""
    return entries, f"{len(problems)} of {len(problems) + len(entries)} entries: {problems[0]}"


def _signature(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:  # a dangling link, say: reading it tells the reason
        return ()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
