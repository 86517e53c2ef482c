"""What every result file says of its making, and where it lies."""

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.store import export_entries
from autoswizzle.config import GemmConfig
from autoswizzle.errors import CacheError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.finals import Final

RESULTS = Path(__file__).parent / "results"


def folder_of(gpu: Gpu) -> Path:
    """Where results on gpu are kept: results/h200 for an NVIDIA H200."""
    name = gpu.name.lower().removeprefix("nvidia").strip().replace(" ", "-")
    return RESULTS / name


def stamp(gpu: Gpu) -> dict[str, Any]:
    """Command, date, versions and GPU."""
    from autoswizzle.verdicts import versions

    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": gpu.name,
        "versions": versions(),
    }


def fastest_of(final: Final) -> dict[str, Any]:
    """What a final says of the fastest own kernel, torch's decision aside."""
    ours, theirs = final.confirmed
    return {
        "config": final.fastest.to_dict(),
        "ratio": final.ratio,
        "ratio_low": final.ratio_low,
        "ratio_high": final.ratio_high,
        "time_us": ours.time_us,
        "torch_us": theirs.time_us,
        "sm_mhz": ours.sm_mhz,
        "power_w": ours.power_w,
    }


def results_file(text: str) -> Path:
    """The results named on a command line; raises ArgumentTypeError, which argparse tells."""
    path = Path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"results must be a file, got {text}")
    return path


def add_entries(target: Path, entries: Sequence[CacheEntry]) -> int:
    """How many entries the cache file holds with these; where it is none, the program ends."""
    try:
        return export_entries(target, entries)
    except CacheError as error:
        raise SystemExit(str(error)) from None


class Winners:
    """The configurations fastest in results, by extents and layout: those of any dtype."""

    def __init__(self, results: Sequence[Path]) -> None:
        self._found: dict[tuple[int, int, int, str], dict[GemmConfig, None]] = {}
        for path in results:
            for row in json.loads(path.read_text())["rows"]:
                if "config" in row:
                    of = self._found.setdefault(_product(GemmProblem.parse(row["problem"])), {})
                    of[GemmConfig.from_dict(row["config"])] = None

    def of(self, problem: GemmProblem) -> list[GemmConfig]:
        """Those for problem, in the order of the results; none where it is in none."""
        return list(self._found.get(_product(problem), {}))


def _product(problem: GemmProblem) -> tuple[int, int, int, str]:
    return problem.m, problem.n, problem.k, problem.layout


def write(path: Path, data: dict[str, Any]) -> None:
    """Replace path at once, so that an interrupted run leaves the last whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
