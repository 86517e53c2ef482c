"""Work that is done before it is asked for, in several workers."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import joblib

from autoswizzle.errors import CompileError
from autoswizzle.search.workers import GPU_BLIND, Worker

T = TypeVar("T")
R = TypeVar("R")


class AheadOfNeed(Generic[T, R]):
    """Runs tasks in several GPU-blind workers before their results are asked for, by any thread.

    Threads drive a Worker each, rather than a process pool, which loses every pending task when one
    aborts. memo: folder in which joblib keeps results and CompileErrors, under key, which must name
    all that they depend on besides the task.
    """

    def __init__(
        self,
        factory: Callable[[], Callable[[T], R]],
        *,
        workers: int,
        limit_s: float,
        memo: Path | None = None,
        key: str = "",
    ) -> None:
        self._workers = [Worker(factory, limit_s=limit_s, env=GPU_BLIND) for _ in range(workers)]
        self._idle: SimpleQueue[Worker[T, R]] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, "ahead")
        memory = joblib.Memory(memo, verbose=0)  # None: keeps nothing
        self._remembered = memory.cache(_outcome, ignore=["run"])
        self._key = key
        self._starts: list[Future[None]] = []
        self._futures: dict[T, Future[R]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the workers, which takes seconds, before the first tasks are known."""
        with self._lock:
            if not self._starts:
                self._starts = [self._threads.submit(self._start_one) for _ in self._workers]

    def _start_one(self) -> None:
        with self._idle_worker() as worker:
            worker.start()  # the next task of one that can't be started says why

    def prefetch(self, tasks: Sequence[T]) -> None:
        """Start on tasks, in order, unless that is done."""
        with self._lock:
            for task in tasks:
                if task not in self._futures:
                    self._futures[task] = self._threads.submit(self._run, task)

    def __call__(self, task: T) -> R:
        """The result of task, as soon as it is there; raises what Worker raises."""
        self.prefetch([task])
        return self._futures[task].result()

    def complete(self, tasks: Sequence[T]) -> None:
        """Run tasks side by side, to the end; raises what the first that fails raises."""
        self.prefetch(tasks)
        for task in tasks:
            self(task)

    def _run(self, task: T) -> R:
        outcome = self._remembered(self._key, task, self._run_in_worker)
        if isinstance(outcome, CompileError):
            raise outcome
        result: R = outcome
        return result

    def _run_in_worker(self, task: T) -> R:
        with self._idle_worker() as worker:
            return worker(task)

    @contextmanager
    def _idle_worker(self) -> Iterator[Worker[T, R]]:
        worker = self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Drop what has not begun and kill the workers."""
        with self._lock:
            self._threads.shutdown(wait=False, cancel_futures=True)
        begun: list[Future[Any]] = [*self._starts, *self._futures.values()]
        while not all(future.done() for future in begun):
            for worker in self._workers:  # in a loop: a thread may just be starting its worker
                worker.end()
            time.sleep(0.02)
        for worker in self._workers:
            worker.close()


def _outcome(key: str, task: Any, run: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """The result of task or its CompileError; joblib remembers what is returned, under key."""
    try:
        return run(task)
    except CompileError as error:
        return error
