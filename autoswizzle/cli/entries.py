"""Cache files and folders that a command is given."""

import os
from collections.abc import Sequence
from pathlib import Path

from autoswizzle.cache.index import Stored, read_entries
from autoswizzle.cli.failures import note
from autoswizzle.errors import ArgumentError, CacheError


def existing(text: str) -> Path:
    """Parser of the path of a file or folder that exists; raises ArgumentError."""
    if not os.path.exists(text):  # noqa: PTH110  # False, not an error, for what names no file
        raise ArgumentError(f"must be a file or folder that exists, got {text!r:.80}")
    return Path(text)


def entries_of(paths: Sequence[Path]) -> list[Stored]:
    """Every usable entry of the paths; the others are noted on stderr."""
    found, problems = _read(paths)
    for problem in problems:
        note(f"ignoring {problem}")
    return found


def some_entries_of(paths: Sequence[Path]) -> list[Stored]:
    """As entries_of; CacheError with the first reason where there is none."""
    found, problems = _read(paths)
    if not found:
        why = problems[0] if problems else ", ".join(map(str, paths))
        raise CacheError(f"no usable entry in {why}")
    for problem in problems:
        note(f"ignoring {problem}")
    return found


def _read(paths: Sequence[Path]) -> tuple[list[Stored], list[str]]:
    """The usable entries of files and folders, and what is wrong with others, file by file."""
    found, problems = [], []
    for path in paths:
        files = [path] if path.is_file() else sorted(path.glob("*.json"))
        for file in files:
            entries, problem = read_entries(file)
            if problem:
                problems.append(f"{file}: {problem}")
            found += [Stored(entry, str(file), file) for entry in entries]
    return found, problems
