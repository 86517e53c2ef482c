"""What test_claims.py asks of an SQLite file and test_postgres.py of a server."""

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.history import History
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.search.storage import quiet_optuna

PROBLEM = GemmProblem(1024, 1024, 1024)  # as shared_tasks
TASKS = Path(__file__).with_name("shared_tasks.py")


def start(task, storage, log, *arguments):
    command = [sys.executable, "-X", "faulthandler", str(TASKS), task, storage, str(log)]
    command += map(str, arguments)
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finish(processes):
    """Wait for processes, none of which may complain."""
    for process in processes:
        _, complaint = process.communicate(timeout=120)
        assert (process.returncode, complaint) == (0, ""), complaint


def wait_for_lines(log, count, processes=(), limit_s=120):
    """Wait until log has count lines; processes that end or are late say what they were at."""
    deadline = time.monotonic() + limit_s
    while not log.exists() or len(lines(log)) < count:
        ended = [process for process in processes if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            for process in processes:
                process.send_signal(signal.SIGABRT)  # no effect on one that ended
            said = [process.communicate(timeout=30)[1] for process in processes]
            raise AssertionError(f"{log} has fewer than {count} lines: {said}")
        time.sleep(0.02)


def lines(log):
    return log.read_text().splitlines()


def four_share(storage, folder, names=12, trials=30):
    """Four processes on the same names, then on the same study, where one is killed amid a trial.

    Each name is done once, and no trial is lost or doubled.
    """
    wanted = [f"problem {number}" for number in range(names)]
    done, measured, killed = folder / "done", folder / "measured", folder / "killed"
    victim, *others = [
        start("join", storage, done, ",".join(wanted), log, trials, folder / "ready", 4, killed)
        for log in (killed, measured, measured, measured)
    ]
    wait_for_lines(killed, 2, [victim, *others])
    victim.kill()
    victim.communicate()
    finish(others)
    assert sorted(lines(done)) == sorted(wanted)
    assert len(set(lines(measured))) == len(lines(measured))
    stored = Counter(outcomes(storage))
    assert len(stored) == stored.total()
    assert trials <= stored.total() <= trials + 3  # each other process may have begun its last
    assert (
        {*lines(killed)[:-1], *lines(measured)}
        <= set(stored)
        <= {
            *lines(killed),
            *lines(measured),
        }
    )


def outcomes(storage):
    """The configuration of every outcome of the study."""
    with (
        quiet_optuna(),
        closing(History(storage, SearchSpace(PROBLEM, find_gpu("H200")), {})) as history,
    ):
        return [str(record.config) for record in history.records() if record.outcome is not None]
