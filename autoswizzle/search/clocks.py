"""Clocks and power of a GPU while something runs, from nvidia-smi where there is one."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType

PERIOD_MS = 50


@dataclass(frozen=True, slots=True)
class Clocks:
    """Medians over a span: SM clock in MHz, board power in W; None where nothing reports them."""

    sm_mhz: float | None = None
    power_w: float | None = None


class ClockLog:
    """Context manager that samples a GPU's clocks in a process of its own.

    gpu_id: an index or UUID as nvidia-smi knows it (torch's index may be another one).
    command: the program to read "MHz, W" lines from.
    """

    def __init__(self, gpu_id: str, command: Sequence[str] = ("nvidia-smi",)) -> None:
        query = ("--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")
        self._command = [*command, f"--id={gpu_id}", *query, f"--loop-ms={PERIOD_MS}"]
        self._process: subprocess.Popen[str] | None = None
        self.clocks = Clocks()

    def __enter__(self) -> "ClockLog":
        if shutil.which(self._command[0]) is not None:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        lines = self._process.communicate()[0].splitlines()
        rows = [[_number(text) for text in line.split(",")] for line in lines if "," in line]
        self.clocks = Clocks(*(_middle([row[place] for row in rows]) for place in (0, 1)))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]" on boards that do not report it


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
