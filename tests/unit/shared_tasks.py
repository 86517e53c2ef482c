"""Processes of test_claims.py and test_postgres.py that share a storage."""

import sys
import time
from pathlib import Path

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.claims import Claims
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.measure import Measurement
from autoswizzle.search.study import search
from autoswizzle.simulator.resources import Resources

PROBLEM = GemmProblem(1024, 1024, 1024)


def tune_all(storage, log, names):
    """Claims each name, spends 50 ms on it and logs it, until all have a verdict."""
    claims = Claims(storage)
    left = names.split(",")
    while left:
        name = left.pop(0)
        with claims.claimed(name) as ours:
            if not ours:
                left.append(name)
                time.sleep(0.02)
            elif claims.verdict(name) is None:
                time.sleep(0.05)
                append(log, name)
                claims.save_verdict(name, {"found": name})
    claims.close()


def hold(storage, log, name):
    """Claims name and keeps it until killed."""
    claims = Claims(storage)
    append(log, str(claims.claim(name)))
    time.sleep(600)


def measure_trials(storage, log, trials, slowest=None):
    """One of several workers on the same study; each measurement of a fake device is logged.

    slowest: the log of a worker that must have its two trials of the budget: others wait for it.
    """

    def measure(config: GemmConfig) -> Measurement:
        while slowest not in (None, log) and count(slowest) < 2:
            time.sleep(0.02)
        time.sleep(0.05)
        append(log, str(config))
        time_us = 100.0 if config == TORCH else 10.0 + config.num_stages
        return Measurement(config, time_us, time_us, time_us, "sustained")

    search(
        PROBLEM,
        find_gpu("H200"),
        measure=measure,
        compile=lambda config: Resources(128, 49152, 8),
        effort=EFFORTS["exhaustive"].with_budget(trials=int(trials)),
        storage=storage,
    )


def join(storage, done, names, measured, trials, ready, processes, slowest):
    """First tune_all, then measure_trials, when all processes have started."""
    append(ready, "started")
    while count(ready) < int(processes):
        time.sleep(0.02)
    tune_all(storage, done, names)
    measure_trials(storage, measured, trials, slowest)


def count(log):
    """Lines of a log, which may not be there yet."""
    return len(Path(log).read_text().splitlines()) if Path(log).exists() else 0


def fake_compilers():
    """Worker factory: compiles nothing."""
    return lambda task: Resources(128, 49152, 8)


def stuck_bench(log):
    """Worker factory: measures two configurations, logs the third and hangs."""
    done = []

    def measure(task):
        done.append(task)
        if len(done) > 2:
            append(log, str(task.problem))
            time.sleep(600)
        return Measurement(task.config, 10.0, 9.0, 11.0, "sustained")

    return measure


def stuck(log):
    """Worker factory: logs the first task and hangs."""

    def hang(task):
        append(log, str(task))
        time.sleep(600)

    return hang


def append(log, line):
    with open(log, "a") as file:  # noqa: PTH123
        file.write(f"{line}\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
