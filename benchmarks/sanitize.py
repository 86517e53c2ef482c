"""Every kernel family under compute-sanitizer: memcheck for all, racecheck for the pointer kernels.

    python benchmarks/sanitize.py [--families pointer,tma,wgmma,skinny] [--out DIR]

Each family runs a ragged problem in every dtype and layout it takes, one that TMA can't address,
and a spread of its tunables on the first, with all its rows, half of them (and a k of whole steps,
which kernels load without a mask) and a quarter, each product checked exactly. Writes
results/<gpu>/sanitizer.json: launches, errors, and what the tool said; what it holds of other
families stays.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from record import folder_of, stamp, write
from time_tables import drawn

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Gpu, detect
from autoswizzle.kernels import run
from autoswizzle.problem import TORCH_NAMES, GemmProblem
from autoswizzle.space import FAMILIES

TOOLS = {"memcheck": tuple(FAMILIES), "racecheck": ("pointer",)}
DTYPES = (("bf16", "ieee"), ("fp16", "ieee"), ("fp32", "ieee"), ("fp32", "tf32"))
LAYOUTS = ("nn", "nt", "tn", "tt")
SPREAD = 8  # configurations of each family on each number of rows of one problem
WHOLE_K = 4096  # which every searched block_k divides
DRAWS = 20_000  # tries; some families take some problems in no way
FAILED = 9  # exit status the tool gives for any error it finds


def problems(family: str) -> Iterator[GemmProblem]:
    """Ragged in m, if the family takes so many rows, and k; n a whole number of 16 bytes, as copies
    by the copy engine need. Then odd extents.
    """
    rows = int(min(200, FAMILIES[family].max_m))
    for dtype, precision in DTYPES:
        for layout in LAYOUTS:
            yield GemmProblem(rows, 152, 136, dtype, layout, precision=precision)
    yield GemmProblem(rows - 1, 151, 137)


def launches(gpu: Gpu, family: str) -> Iterator[tuple[GemmConfig, GemmProblem]]:
    for problem in problems(family):
        for config in of_family(problem, gpu, family, 1):
            yield config, problem
    unable = FAMILIES[family].why_unable
    first = next(problem for problem in problems(family) if unable(problem, gpu) is None)
    for rows, k in ((first.m, first.k), (first.m // 2, WHOLE_K), (first.m // 4, first.k)):
        problem = replace(first, m=rows, k=k)
        for config in of_family(problem, gpu, family, SPREAD):
            yield config, problem


def of_family(problem: GemmProblem, gpu: Gpu, family: str, count: int) -> list[GemmConfig]:
    """Up to count of its configurations."""
    return drawn([problem], gpu, count, f"{family} {problem}", kernels=(family,), draws=DRAWS)


def child(family: str) -> None:
    """Run the family's launches here; exact on integers in -2..2."""
    count = 0
    for config, problem in launches(detect(0), family):
        dtype = getattr(torch, TORCH_NAMES[problem.dtype])
        shapes = ((problem.m, problem.k), (problem.k, problem.n))
        a, b = (
            torch.randint(-2, 3, shape if side == "n" else shape[::-1], device="cuda").to(dtype)
            for shape, side in zip(shapes, problem.layout, strict=True)
        )
        a = a if problem.layout[0] == "n" else a.t()
        b = b if problem.layout[1] == "n" else b.t()
        out = torch.full((problem.m, problem.n), float("nan"), dtype=dtype, device="cuda")
        run(config, problem, a, b, out)
        expected = (a.cpu().double() @ b.cpu().double()).to(dtype)
        if not torch.equal(out.cpu(), expected):
            raise SystemExit(f"wrong product: {config} {problem}")
        count += 1
    print(f"launches {count}")


def checked(tool: str, family: str) -> dict[str, Any]:
    began = time.monotonic()
    command = [
        "compute-sanitizer", "--tool", tool, "--error-exitcode", str(FAILED),
        # triton's loader tries attributes that a driver may refuse, and goes on without
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),
        sys.executable, __file__, "--child", family,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (ran.stdout + ran.stderr).splitlines()
    told = [line for line in lines if line.startswith(("=========", "launches", "wrong"))]
    count = next((int(line.split()[1]) for line in lines if line.startswith("launches")), 0)
    row = {
        "tool": tool, "family": family, "launches": count, "exit": ran.returncode,
        "seconds": round(time.monotonic() - began, 1), "said": told[:60] or lines[-20:],
    }  # fmt: skip
    summary = [line for line in told if "SUMMARY" in line]
    print(tool, family, f"launches {count}, exit {ran.returncode}", *summary, flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer must be on the PATH, got none")
        return 2
    gpu = detect(0)
    wanted = options.families.split(",")
    path = (options.out or folder_of(gpu)) / "sanitizer.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(row["tool"], row["family"]): row for row in known}
    tasks = [(tool, family) for tool in TOOLS for family in TOOLS[tool] if family in wanted]
    for task in tasks:
        made = stamp(gpu)
        rows[task] = {"date": made["date"], "versions": made["versions"], **checked(*task)}
        write(path, {**made, "rows": list(rows.values())})
    return int(any(rows[task]["exit"] or not rows[task]["launches"] for task in tasks))


if __name__ == "__main__":
    sys.exit(main())
