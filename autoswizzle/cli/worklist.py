"""Work lists: problems from arguments and from text, CSV and JSONL files."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from autoswizzle.errors import ArgumentError, ProblemError
from autoswizzle.problem import TEXT_FORM, GemmProblem
from autoswizzle.records import json_lines, json_value, text_of

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


def _uncommented(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


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
    ".jsonl": (_from_json, json_lines),
}
