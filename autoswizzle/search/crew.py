"""Several workers, a thread each, that share a list of items."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from autoswizzle.search.workers import SIGNAL_CHECK_S

BUSY_S = 0.2  # pause after an item that another process is at
END_S = 1.0  # for the threads to end after an interrupt; what computes longer is left behind

T = TypeVar("T")
R = TypeVar("R")


class Crew(Generic[T, R]):
    """Gives each item to the next free worker.

    workers: each returns an item's result, or None for one that it has to be asked again about.
    end: called, again and again, to make busy workers raise KeyboardInterrupt.
    """

    def __init__(self, workers: Sequence[Callable[[T], R | None]], end: Callable[[], None]) -> None:
        self._workers = workers
        self._end = end
        self._open: deque[tuple[int, T]] = deque()
        self._results: dict[int, R] = {}
        self._ended = threading.Event()
        self._over: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self, items: Sequence[T]) -> list[R]:
        """The results, in the order of the items.

        Raises what the first worker raised, or KeyboardInterrupt, when the others have ended.
        """
        self._open.extend(enumerate(items))
        threads = [
            threading.Thread(target=self._drive, args=(worker,), name="crew", daemon=True)
            for worker in self._workers[: len(items)]
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                error = self._next_over()
                if error is not None:
                    raise error
        except BaseException:
            self._stop(threads)
            raise
        return [self._results[place] for place in range(len(items))]

    def _next_over(self) -> BaseException | None:
        while True:
            try:
                return self._over.get(timeout=SIGNAL_CHECK_S)
            except Empty:
                pass  # lets the main thread see a signal that another thread took

    def _drive(self, worker: Callable[[T], R | None]) -> None:
        try:
            while not self._ended.is_set():
                try:
                    place, item = self._open.popleft()
                except IndexError:
                    break
                result = worker(item)
                if result is None:
                    self._open.append((place, item))
                    self._ended.wait(BUSY_S)
                else:
                    self._results[place] = result
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._over.put(error)
        else:
            self._over.put(None)

    def _stop(self, threads: Sequence[threading.Thread]) -> None:
        self._ended.set()
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline and any(thread.is_alive() for thread in threads):
            self._end()
            time.sleep(0.02)
