"""What the Dask workers of test_cluster.py load: two GPUs each, and searches that need none.

The folder named by SEARCHES holds their log and the files by which a test changes what they do.
"""

import os
import signal
import time
from pathlib import Path

from autoswizzle import cluster, tuning, verdicts
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import TuneError, UnavailableError
from autoswizzle.hardware import find_gpu
from autoswizzle.search.finals import Final
from autoswizzle.search.measure import Measurement
from autoswizzle.search.study import SearchResult

FAILS, KILLS = 96, 112  # n of a problem that no worker can tune, and of one that kills it


def dask_setup(worker):
    """Called by Dask in each worker process."""
    folder = Path(os.environ["SEARCHES"])
    host = folder.stat().st_ino  # tells it from those of other runs of the tests

    def visible_gpus():
        if (folder / f"no GPU {worker.name}").exists():
            raise UnavailableError("no CUDA device: torch finds none")
        if (folder / "one GPU").exists():
            return [f"{host} everybody's"]
        return [f"{host} worker {worker.name}'s {number}" for number in ("first", "second")]

    def search(laboratory, problem, progress, seeds):
        log(folder, "begin", problem)
        (folder / f"seeds {problem.m}").write_text(str(len(seeds)))
        (folder / f"margin {problem.m}").write_text(str(laboratory.effort.margin))
        if problem.n == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if problem.n == FAILS:
            raise TuneError("every candidate failed")
        if (folder / "hang").exists():
            (folder / "hang").rename(folder / "hung")
            (folder / "hung").write_text(str(os.getpid()))
            wait_for(folder / "go on")
        time.sleep(0.1)
        log(folder, "end", problem)
        return found()

    cluster.visible_gpus = visible_gpus
    tuning.detect = lambda device: find_gpu("H200")
    verdicts.versions = lambda: {"torch": "2.11"}
    tuning.Laboratory.search = search


def wait_for(path, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def log(folder, event, problem):
    with (folder / "log").open("a") as file:
        file.write(f"{event} {problem.m} {os.getpid()}\n")


def found():
    ours = GemmConfig(swizzle="hilbert")
    own, torch = Measurement(ours, 8.0, 7.9, 8.1, "x"), Measurement(TORCH, 10.0, 9.9, 10.1, "x")
    final = Final(ours, ours, 1.25, 1.2, 1.3, (own, torch), (own, torch))
    return SearchResult(own, (own, torch), (), None, "trials", final)
