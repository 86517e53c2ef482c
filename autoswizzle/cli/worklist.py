"""Work lists: problems from arguments and from text, CSV and JSONL files."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from autoswizzle.errors import ArgumentError, ProblemError
from autoswizzle.problem import TEXT_FORM, GemmProblem

MAX_BYTES = 64 * 1024**2  # of one file, a million problems; a device would never end
_FIELDS = {field.name: field.type for field in fields(GemmProblem)}


def with_dtype(text: str, dtype: str | None = None) -> GemmProblem:
    """The problem that text spells, of dtype where it names none; raises ProblemError."""
    if dtype is None:
        return GemmProblem.parse(text)
    if ":" not in text:
        return GemmProblem.parse(f"{text}:{dtype}")
    problem = GemmProblem.parse(text)
    if problem.dtype != dtype:
        raise ProblemError(f"--dtype must agree with {text!r}, got {dtype!r}")
    return problem


def work_list(
    texts: Sequence[str],
    files: Sequence[Path] = (),
    dtype: str | None = None,
    more: Sequence[GemmProblem] = (),
) -> list[GemmProblem]:
    """Every problem named, once: texts, files, more. Raises ArgumentError when there is none."""
    found = [with_dtype(text, dtype) for text in texts]
    for path in files:
        found += read_problems(path, dtype)
    found += more
    if not found:
        named = f"{', '.join(map(str, files))} must name a problem" if files else "name a problem"
        raise ArgumentError(f"nothing to tune: {named}, as {TEXT_FORM}")
    return list(dict.fromkeys(found))


def read_problems(path: Path, dtype: str | None = None) -> list[GemmProblem]:
    """The problems of one file, UTF-8, blank lines skipped; its suffix says how.

    .csv: a header of GemmProblem's fields. .jsonl: on each line a mapping of such fields, or one
    with a text form as "problem" (as record_shapes writes), or a text form as a string. Anything
    else: one text form a line, # starts a comment.
    Raises ArgumentError naming file and line.
    """
    parse, split = _FORMATS.get(path.suffix.lower(), (with_dtype, _uncommented))
    problems = []
    number = 1
    try:
        for number, item in split(text_of(path, "--file")):  # noqa: B007  # used below
            problems.append(parse(item, dtype))
    except ProblemError as error:
        raise ArgumentError(f"{path}:{number}: {error}") from None
    return problems


def read_record(path: Path) -> list[GemmProblem]:
    """The problems of a recorded run, each once, the most frequent first.

    path: JSON Lines; each line a mapping with a "problem" in its text form and, if it stands for
    several calls, their "count". Raises ArgumentError naming file and line.
    """
    counts: Counter[GemmProblem] = Counter()
    for number, line in _json_lines(text_of(path, "--from-record")):
        try:
            problem, count = _recorded(line)
        except ProblemError as error:
            raise ArgumentError(f"{path}:{number}: {error}") from None
        counts[problem] += count
    return [problem for problem, _ in counts.most_common()]


def _recorded(line: str) -> tuple[GemmProblem, int]:
    item = json_value(line)
    if not isinstance(item, dict) or not isinstance(item.get("problem"), str):
        raise ProblemError(f'a line must be a JSON mapping with a "problem", got {line!r:.80}')
    count = item.get("count", 1)
    if type(count) is not int or count < 1:
        raise ProblemError(f"count must be an integer of at least 1, got {count!r}")
    return GemmProblem.parse(item["problem"]), count


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


def _uncommented(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


def _json_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line


def _csv_rows(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = reader.fieldnames or ()
        if len(set(columns)) < len(columns):
            raise ProblemError(f"columns must have different names, got {', '.join(columns)}")
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ProblemError(f"the file must be CSV: {error}") from None


def _from_json(line: str, dtype: str | None) -> GemmProblem:
    item = json_value(line)
    if isinstance(item, str):
        return with_dtype(item, dtype)
    if not isinstance(item, dict):
        raise ProblemError(f"a line must be a JSON mapping or string, got {line!r:.80}")
    if isinstance(item.get("problem"), str):  # as record_shapes writes them
        return with_dtype(item["problem"], dtype)
    return _from_fields(item, dtype)


def _from_fields(item: Mapping[str, Any], dtype: str | None) -> GemmProblem:
    named = {name: value for name, value in item.items() if value not in (None, "")}
    if not {"m", "n", "k"} <= set(named) <= set(_FIELDS):
        raise ProblemError(f"fields must be m, n, k and any of {_OPTIONAL}, got {dict(item)!r}")
    named.setdefault("dtype", dtype or "bf16")
    return GemmProblem(**{name: _typed(name, value) for name, value in named.items()})


def _typed(name: str, value: object) -> Any:  # noqa: ANN401  # any field's type
    """A CSV cell as its field's type; JSON values are typed already."""
    if not isinstance(value, str):
        return value
    word = value.strip()
    if _FIELDS[name] is int:
        return int(word) if word.isascii() and word.isdigit() and len(word) < 19 else value
    return {"true": True, "false": False}.get(word.lower(), word) if name == "aligned" else word


_OPTIONAL = ", ".join(list(_FIELDS)[3:])
_FORMATS: Mapping[str, tuple[Any, Any]] = {
    ".csv": (_from_fields, _csv_rows),
    ".jsonl": (_from_json, _json_lines),
}
