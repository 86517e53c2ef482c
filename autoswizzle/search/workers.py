"""Candidates in processes of their own: what kills, hangs or poisons one costs that candidate only.

A worker is a fresh interpreter (nothing of the caller's is imported again, no CUDA context is
inherited) in a session of its own, so a Ctrl-C at the terminal does not reach it. It exits when its
parent does. Task and result travel pickled.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, Generic, TypeVar

from autoswizzle import errors
from autoswizzle.errors import CandidateError, CompileError, LaunchError, WrongResultError

START_S = 180.0  # to import torch and to make inputs on a busy machine
PARENT_CHECK_S = 1.0
SIGNAL_CHECK_S = 0.2  # a signal that another thread took is seen by the main one when it wakes
GPU_BLIND = {"CUDA_VISIBLE_DEVICES": ""}  # environment of a worker that must not touch a GPU

_SERVE = "from autoswizzle.search.workers import serve; serve({})"

T = TypeVar("T")
R = TypeVar("R")


class Worker(Generic[T, R]):
    """Runs tasks one at a time in another process; restarts it after whatever it did not survive.

    factory: picklable; called once in the worker, returns the function that takes the tasks.
    limit_s: time limit of a task; the factory has START_S. env: set before anything is imported.
    """

    def __init__(
        self,
        factory: Callable[[], Callable[[T], R]],
        *,
        limit_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._factory = pickle.dumps(factory)
        self._limit_s = limit_s
        self._env = {**os.environ, **(env or {})}
        self._process: _Process | None = None

    def __call__(self, task: T) -> R:
        """The function's result for task.

        Raises the task's CandidateError; LaunchError, whose kind is the class of failure, for any
        other exception (its name), a worker that died (Died) or went over the limit (Hung).
        Raises TuneError if no worker can be started.
        """
        healthy = False
        try:
            answer = self._started().ask(task, self._limit_s)
            # A failed launch may have left the device's context unusable for whatever follows.
            healthy = answer.failure is None or answer.failure in _HARMLESS
        finally:
            if not healthy:
                self.close()
        result: R = answer.result()
        return result

    def start(self) -> None:
        """Have the process ready, which the first task does otherwise; raises TuneError."""
        self._started()

    def _started(self) -> "_Process":
        if self._process is None:
            with ExitStack() as undone:  # also by an interrupt: a half-made one answers out of step
                undone.callback(self.close)
                self._process = _Process(self._env)
                self._process.make(self._factory)
                undone.pop_all()
        return self._process

    def close(self) -> None:
        """Kill the process; the next task starts another."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def end(self) -> None:
        """Kill the process from another thread than the one that waits for it."""
        process = self._process
        if process is not None:
            process.end()


_HARMLESS = (CompileError.__name__, WrongResultError.__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a task came to: a value; or a message, with its exception's class name and kind."""

    value: Any
    failure: str | None = None
    kind: str = ""

    def result(self) -> Any:  # noqa: ANN401 - the task's own type
        if self.failure is None:
            return self.value
        known = getattr(errors, self.failure)
        raise (
            known(self.value, self.kind) if issubclass(known, CandidateError) else known(self.value)
        )


class _Process:
    """One started worker process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        self._connection: Connection = ours
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _SERVE.format(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=True,
                )
            except OSError as error:  # no memory or no process left, say
                raise errors.TuneError(f"a worker can't start: {error}") from error

    def make(self, factory: bytes) -> None:
        """Let it call the pickled factory; raises TuneError if that fails."""
        try:
            self._connection.send((sys.path, factory))
            answer = self._receive(START_S)
        except BrokenPipeError:
            answer = self._death()
        if answer.failure is not None:
            raise errors.TuneError(f"a worker can't start: {answer.kind}: {answer.value}")

    def ask(self, task: object, limit_s: float) -> _Answer:
        """The answer to task."""
        try:
            self._connection.send(task)
        except BrokenPipeError:
            return self._death()  # while it was idle
        return self._receive(limit_s)

    def _receive(self, limit_s: float) -> _Answer:
        deadline = time.monotonic() + limit_s
        while not self._connection.poll(SIGNAL_CHECK_S):
            if time.monotonic() > deadline:
                return _Answer(f"no answer within {limit_s:g} s", "LaunchError", "Hung")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            return self._death()
        assert isinstance(answer, _Answer)
        return answer

    def _death(self) -> _Answer:
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        return _Answer(f"the process died of {cause}{said}", "LaunchError", "Died")

    def end(self) -> None:
        """Kill it and what it started; a thread that waits for its answer sees it die."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and free what it holds here."""
        self.end()
        self._process.wait()
        self._connection.close()
        self._output.close()


def serve(descriptor: int) -> None:
    """Body of a worker process: answer tasks from the parent's pipe until it closes."""
    threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    with Connection(descriptor) as connection:
        sys.path[:], factory = connection.recv()
        made = _answered(lambda: pickle.loads(factory)())
        connection.send(_Answer(None) if made.failure is None else made)
        while made.failure is None:
            try:
                task = connection.recv()
            except EOFError:
                return
            connection.send(_answered(made.value, task))


def _answered(call: Callable[..., Any], *arguments: object) -> _Answer:
    try:
        return _Answer(call(*arguments))
    except CandidateError as error:
        return _Answer(str(error), type(error).__name__, error.kind)
    except errors.AutoswizzleError as error:
        return _Answer(str(error), type(error).__name__)
    except Exception as error:  # noqa: BLE001 - the border to the parent process
        return _Answer(str(error), LaunchError.__name__, type(error).__name__)


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)
