"""What the workers of test_workers.py run; importable in their processes."""

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time

from autoswizzle.errors import CandidateError, CompileError, UnavailableError, WrongResultError

RAISED = {
    "compile": CompileError("PassManager::run failed"),
    "wrong": WrongResultError("3 of 4 elements are wrong"),
    "kind": CandidateError("no", "Special"),
    "runtime": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "memory": MemoryError("out of memory"),
    "system": SystemError("bad call"),
    "machine": UnavailableError("no driver"),
    "interrupt": KeyboardInterrupt(),
}


def perform(state, task):
    """Do what task says; state is what this process has done so far."""
    state.append(task)
    name, _, argument = str(task).partition(" ")
    if name in RAISED:
        raise RAISED[name]
    if name == "abort":
        print("LLVM ERROR: cannot select", file=sys.stderr)
        print("Assertion `width > 0' failed", file=sys.stderr, flush=True)
        os.abort()
    elif name == "segfault":
        ctypes.string_at(0)
    elif name == "exit":
        os._exit(3)
    elif name == "hang":
        subprocess.Popen(["sleep", "1000"])
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        while True:
            time.sleep(1)
    elif name == "sleep":
        time.sleep(float(argument))
    elif name == "touch":
        with open(argument, "a") as file:  # noqa: PTH123
            print(os.getpid(), file=file)
    elif name == "env":
        return os.environ.get(argument)
    elif name == "print":
        print("noise", flush=True)
    elif name == "unpicklable":
        return lambda: None
    return os.getpid(), tuple(state)


def factory():
    return functools.partial(perform, [])


def broken_factory():
    raise RuntimeError("no device")


def slow_factory():
    time.sleep(1000)


def late_factory():
    time.sleep(1)
    return lambda task: task


def dying_factory():
    os.abort()


def recorded_factory(log, task_log=None):
    with open(log, "a") as file:  # noqa: PTH123
        print(os.getpid(), file=file)
    return functools.partial(perform, [])
