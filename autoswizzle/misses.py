"""The log of problems that were multiplied untuned, for `autoswizzle tune --from-misses`."""

import json
import logging
import os
from pathlib import Path
from threading import Lock

from autoswizzle.errors import ProblemError
from autoswizzle.problem import GemmProblem

FILE_NAME = "misses.jsonl"
MAX_BYTES = 1024**2  # some 10,000 problems; a longer log is not read further nor added to

_log = logging.getLogger(__name__)


class MissLog:
    """A JSON Lines file, one line for each problem and GPU; failing to write it harms nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: set[str] | None = None
        self._lock = Lock()

    def add(self, problem: GemmProblem, gpu: str) -> None:
        """Append the problem unless the file or this process has it."""
        line = json.dumps({"problem": str(problem), "gpu": gpu})
        with self._lock:
            try:
                if self._seen is None:
                    self._seen = set(_lines(self.path))
                if line in self._seen:
                    return
                self._seen.add(line)
                self._append(line + "\n")
            except OSError as error:
                _log.debug("cannot log a miss in %s: %s", self.path, error)

    def _append(self, line: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self.path, flags, 0o666)
        try:
            if os.fstat(descriptor).st_size < MAX_BYTES:
                os.write(descriptor, line.encode())  # one call: lines of processes stay whole
        finally:
            os.close(descriptor)


def read_misses(path: Path) -> list[GemmProblem]:
    """The problems of a miss log, each once, in the order they were met; bad lines are logged.

    Raises OSError when it can't be read; a log that is not there holds none.
    """
    found: dict[GemmProblem, None] = {}
    for number, line in enumerate(_lines(path), 1):
        try:
            found[GemmProblem.parse(json.loads(line)["problem"])] = None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            kind = "not a problem" if not isinstance(error, ProblemError) else str(error)
            _log.warning("ignoring %s:%d: %.200s", path, number, kind)
    return list(found)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        return file.read(MAX_BYTES).decode(errors="replace").splitlines()
