"""Work for the workers of a Dask cluster: each task is done by one of them, alone on a GPU.

joblib's own Dask backend (1.6) does the work here, where there may be no GPU, if the cluster has a
single thread, and waits for ever for a task whose workers died; so Dask is asked directly.
"""

import errno
import logging
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autoswizzle.errors import ArgumentError, AutoswizzleError, TuneError, UnavailableError

if TYPE_CHECKING:
    import distributed

CONNECT_S = 10.0  # for the scheduler to answer
NO_WORKER_S = 60.0  # without any worker, at the start and later
CHECK_S = 1.0  # between two looks at whether there is one
BUSY_S = 5.0  # a task waits this long for a GPU, then it is another worker's turn
POLL_S = 0.1  # between two tries to get one
FAILURES = 3  # workers that may fail at a task before it counts as failed

T = TypeVar("T")
R = TypeVar("R")


def scheduler_of(backend: object) -> str:
    """Dask's address of dask://HOST:PORT; raises ArgumentError."""
    text = backend if isinstance(backend, str) else ""
    match = re.fullmatch(r"dask://([^\s/@]+:\d{1,5})", text)
    if match is None:
        raise ArgumentError(f"backend must be dask://HOST:PORT, got {backend!r:.80}")
    return f"tcp://{match[1]}"


@contextmanager
def connected(backend: str) -> Iterator["Cluster"]:
    """The cluster whose scheduler is at dask://HOST:PORT, until the block ends.

    What no worker has begun by then is taken back; what one is at, it ends, and nobody gets it.
    Raises ArgumentError for another URL, UnavailableError without Dask, when nobody answers, and
    when the scheduler is lost.
    """
    address = scheduler_of(backend)
    try:
        import distributed
    except ImportError:
        raise UnavailableError(
            "backend needs Dask, which is not installed: pip install 'autoswizzle[dask]'"
        ) from None
    log = logging.getLogger("distributed.client")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a lost scheduler is a traceback there, and an error here
    try:
        try:
            client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, distributed.TimeoutError) as error:
            raise UnavailableError(f"no Dask scheduler: {error}") from None
        with closing(client):
            yield Cluster(client, address)
    except CancelledError:
        raise UnavailableError(
            f"the Dask scheduler at {address} is gone, or has dropped the work"
        ) from None
    finally:
        log.setLevel(level)


class Cluster:
    """The workers of a Dask client, which is connected to a scheduler at address."""

    def __init__(self, client: "distributed.Client", address: str) -> None:
        self._client = client
        self._address = address

    def run(
        self, function: Callable[[int, T], R], tasks: Sequence[T]
    ) -> Iterator[tuple[T, R | TuneError]]:
        """Yield each task with function(device, task), or why there is none, as they end.

        function: of a module that the workers have; device: the GPU's number there. A task is done
        again elsewhere when its worker dies, lacks something (UnavailableError) or fails at it (any
        other AutoswizzleError); it has failed when it did so on FAILURES workers or no worker is
        left to ask. Raises UnavailableError when the cluster has no worker any more.
        """
        open_jobs: dict[Any, _Job[T]] = {}

        def submit(job: _Job[T], **where: Any) -> None:  # noqa: ANN401  # Dask's own options
            call = pickle.dumps(partial(_serve, function, job.task))
            open_jobs[self._client.submit(_carrier(), call, pure=False, **where)] = job

        for task in tasks:
            submit(_Job(task))
        while open_jobs:
            for future in self._done(list(open_jobs)):
                job = open_jobs.pop(future)
                error = future.exception()
                if error is not None:
                    yield job.task, _death(error)
                    continue
                worker, outcome = future.result()
                if outcome is None:  # its GPUs are busy
                    submit(job)
                elif isinstance(outcome, Exception):
                    job.failures[worker] = outcome
                    others = self._workers() - set(job.failures)
                    if job.has_failed or not others:
                        yield job.task, job.failure
                    else:  # others may be gone by then: any worker is better than none
                        submit(job, workers=sorted(others), allow_other_workers=True)
                else:
                    yield job.task, outcome

    def _workers(self) -> set[str]:
        if self._client.status != "running":  # it connects again, or gives up and cancels the work
            return set()
        try:
            return set(self._client.ncores())
        except OSError as error:
            raise UnavailableError(
                f"the Dask scheduler at {self._address} is gone: {error}"
            ) from None

    def _done(self, futures: "list[distributed.Future]") -> "set[distributed.Future]":
        """Those that ended, at least one."""
        from distributed import TimeoutError as StillWaiting
        from distributed import wait

        worked = time.monotonic()
        while True:
            try:
                with self._client.as_current():
                    done: set[distributed.Future] = wait(futures, CHECK_S, "FIRST_COMPLETED").done
                return done
            except StillWaiting:
                if self._workers():
                    worked = time.monotonic()
                elif time.monotonic() - worked > NO_WORKER_S:
                    raise UnavailableError(
                        f"the Dask scheduler at {self._address} has had no worker "
                        f"for {NO_WORKER_S:g} s"
                    ) from None


@dataclass
class _Job(Generic[T]):
    """A task and what became of it so far, by worker."""

    task: T
    failures: dict[str, Exception] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Whether no further worker needs to try."""
        lacks = (UnavailableError, ImportError)
        return sum(not isinstance(e, lacks) for e in self.failures.values()) >= FAILURES

    @property
    def failure(self) -> TuneError:
        """Each reason once, with a worker that gave it."""
        reasons = {str(error): worker for worker, error in self.failures.items()}
        return TuneError("; ".join(f"{text} (on {worker})" for text, worker in reasons.items()))


def _death(error: BaseException) -> TuneError:
    """What KilledWorker says; raises any other error, which is a mistake of the task's code."""
    from distributed import KilledWorker

    if not isinstance(error, KilledWorker):
        raise error
    died, last = error.allowed_failures + 1, error.last_worker.address
    return TuneError(f"{died} Dask workers died while at it, the last one {last}")


def _carrier() -> Callable[[bytes], tuple[str, Any]]:
    """What Dask is asked to call on a worker: returns its address and what the pickled call does.

    A function within a function travels by value. One of this module would be imported by Dask
    itself, which ends a worker, and refuses the work at a scheduler, where that fails.
    """

    def autoswizzle(call: bytes) -> tuple[str, Any]:
        import pickle

        from distributed import get_worker

        try:
            return get_worker().address, pickle.loads(call)()
        except ImportError as error:
            return get_worker().address, error

    return autoswizzle


def _serve(function: Callable[[int, T], R], task: T) -> R | AutoswizzleError | None:
    """function(device, task) on a free GPU of this process; None if none is free for BUSY_S."""
    try:
        with free_gpu(visible_gpus(), BUSY_S) as device:
            return None if device is None else function(device, task)
    except AutoswizzleError as error:
        return error


def visible_gpus() -> list[str]:
    """The UUIDs of the GPUs this process sees, by number; raises UnavailableError without one."""
    import torch

    if not torch.cuda.is_available():
        raise UnavailableError("no CUDA device: torch finds none")
    return [
        str(torch.cuda.get_device_properties(number).uuid)
        for number in range(torch.cuda.device_count())
    ]


@contextmanager
def free_gpu(gpus: Sequence[str], wait_s: float) -> Iterator[int | None]:
    """The number of the first of gpus that nobody has so far, had until the block ends.

    gpus: names that hold for the whole host. None if none becomes free within wait_s. A GPU is had
    by binding a name of Linux's abstract socket namespace: the kernel frees it with the process.
    """
    deadline = time.monotonic() + wait_s
    while True:
        for number, gpu in enumerate(gpus):
            with socket.socket(socket.AF_UNIX) as claim:
                if _bound(claim, f"\0autoswizzle {gpu}"):
                    yield number
                    return
        if time.monotonic() > deadline:
            yield None
            return
        time.sleep(POLL_S)


def _bound(claim: socket.socket, name: str) -> bool:
    try:
        claim.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
