"""Whether the process that holds a trial still runs."""

import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

from autoswizzle.search.storage import GRACE_S


def this_process() -> dict[str, Any]:
    """What tells this process from every other: host, process id and start."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_alive(worker: dict[str, Any] | None, since: datetime | None) -> bool:
    """Whether a trial's process still runs; other hosts' workers are judged by their heartbeat.

    worker: its this_process(), None if it had not said yet. since: when the trial started.
    """
    if worker is None:
        return since is not None and (datetime.now() - since).total_seconds() < GRACE_S
    if worker["host"] != socket.gethostname():
        return True
    try:
        os.kill(worker["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    return bool(worker["started"] == _started(worker["pid"]))


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; tells it from a later one of the same id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
