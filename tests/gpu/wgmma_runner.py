"""Runs wgmma cases, in a process of their own, and chooses them."""

import itertools
import json
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.problem import GemmProblem

STARTUP_S, CASE_S = 300, 15  # time limits: of imports and compiling, then of each case


def pairwise(factors: Sequence[Sequence[Any]], rng: random.Random) -> Iterator[list[Any]]:
    """Rows of one value of each factor, in which every pair of values is met at least once."""
    wanted = {
        (i, x, j, y)
        for (i, xs), (j, ys) in itertools.combinations(enumerate(factors), 2)
        for x, y in itertools.product(xs, ys)
    }
    while wanted:
        first = min(wanted, key=str)
        rows = []
        for _ in range(50):
            row = [rng.choice(values) for values in factors]
            row[first[0]], row[first[2]] = first[1], first[3]
            covered = {(i, x, j, y) for (i, x), (j, y) in itertools.combinations(enumerate(row), 2)}
            rows.append((len(covered & wanted), row, covered))
        _, row, covered = max(rows, key=lambda row: row[0])
        wanted -= covered
        yield row


def check(cases: list[tuple[GemmConfig, GemmProblem, str]]) -> None:
    """Fails with the reason of every case that did not compute its product."""
    why = outcomes(cases)
    failed = {f"{cases[i][0]} on {cases[i][1]}": reason for i, reason in why.items() if reason}
    print(f"{len(cases)} cases, {len(failed)} failed")
    assert not failed, failed


def outcomes(cases: list[tuple[GemmConfig, GemmProblem, str]]) -> dict[int, str | None]:
    """Why each case failed, None if it did not. A case that hangs or crashes takes its process
    along; another one goes on with the next case.
    """
    left = list(range(len(cases)))
    found: dict[int, str | None] = {}
    while left:
        began = _run([cases[index] for index in left], left, found)
        if left[0] not in found and not began:
            pytest.fail("no case could be started: " + str(found))
        left = [index for index in left if index not in found]
    return found


def _run(
    cases: list[tuple[GemmConfig, GemmProblem, str]],
    numbers: list[int],
    found: dict[int, str | None],
) -> bool:
    """Runs cases in one process until it ends or a case is over its limit; whether one began."""
    command = [sys.executable, str(Path(__file__).with_name("wgmma_cases.py"))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    described = [
        {"config": config.to_dict(), "problem": problem.to_dict(), "check": check}
        for config, problem, check in cases
    ]
    process.stdin.write(json.dumps(described))
    process.stdin.close()
    running = None
    limit = STARTUP_S
    reason = "no end within its limit"
    try:
        while (line := lines.get(timeout=limit)) is not None:
            result = json.loads(line)
            running, limit = numbers[result["case"]], CASE_S
            if "error" in result:
                found[running], running = result["error"], None
        reason = f"exit {process.wait()}: {process.stderr.read()[-500:]}"
    except queue.Empty:
        pass
    finally:
        process.kill()
    if running is not None:
        found[running] = reason
    return running is not None or bool(found)
