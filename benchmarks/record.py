"""What every result file says of its making, and where it lies."""

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autoswizzle.hardware import Gpu

RESULTS = Path(__file__).parent / "results"


def folder_of(gpu: Gpu) -> Path:
    """Where results on gpu are kept: results/h200 for an NVIDIA H200."""
    name = gpu.name.lower().removeprefix("nvidia").strip().replace(" ", "-")
    return RESULTS / name


def stamp(gpu: Gpu) -> dict[str, Any]:
    """Command, date, versions and GPU."""
    from autoswizzle.tuning import versions

    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": gpu.name,
        "versions": versions(),
    }


def write(path: Path, data: dict[str, Any]) -> None:
    """Replace path at once, so that an interrupted run leaves the last whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
