"""Recorded runs: the JSON Lines that record_shapes writes and `tune --from-record` reads."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoswizzle.errors import ArgumentError, ProblemError
from autoswizzle.problem import GemmProblem

MAX_BYTES = 64 * 1024**2  # of one file, a million problems; a device would never end


def read_record(path: Path) -> list[GemmProblem]:
    """The problems of a recorded run, each once, the most frequent first.

    path: JSON Lines; each line a mapping with a "problem" in its text form and, if it stands for
    several calls, their "count". Raises ArgumentError naming file and line.
    """
    counts: Counter[GemmProblem] = Counter()
    for number, line in json_lines(text_of(path, "--from-record")):
        try:
            problem, count = _recorded(line)
        except ProblemError as error:
            raise ArgumentError(f"{path}:{number}: {error}") from None
        counts[problem] += count
    return [problem for problem, _ in counts.most_common()]


def check_replaceable(path: Path, named: str) -> None:
    """Raise ArgumentError, calling path what named says, unless it is a record or a new file."""
    try:
        if not path.exists():
            return
    except OSError as error:  # a name too long, say
        raise ArgumentError(
            f"{named} must name a file, got '{path!s:.80}': {error.strerror}"
        ) from None
    if not path.is_file():
        raise ArgumentError(f"{named} must be a file, got '{path}'")
    try:
        read_record(path)
    except ArgumentError as error:
        raise ArgumentError(f"{named} must be a recorded file or a new one: {error}") from None


def text_of(path: Path, option: str) -> str:
    """The content of a UTF-8 file that option names; raises ArgumentError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ArgumentError(
                f"{option} must have at most {MAX_BYTES} bytes, got more in '{path}'"
            )
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ArgumentError(
            f"{option} must be a file that can be read, got '{path}': {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{path}:1: the file must be UTF-8 text") from None


def json_value(text: str) -> Any:  # noqa: ANN401  # any JSON value
    """The value that text spells, None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # ValueError: also an integer too long to convert
        return None


def json_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line


def _recorded(line: str) -> tuple[GemmProblem, int]:
    item = json_value(line)
    if not isinstance(item, dict) or not isinstance(item.get("problem"), str):
        raise ProblemError(f'a line must be a JSON mapping with a "problem", got {line!r:.80}')
    count = item.get("count", 1)
    if type(count) is not int or count < 1:
        raise ProblemError(f"count must be an integer of at least 1, got {count!r}")
    return GemmProblem.parse(item["problem"]), count
