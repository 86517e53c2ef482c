"""What the suite found best against torch.matmul, each at the clock that it settles at.

    python benchmarks/steady.py [--suites bf16-nt ...] [--shapes ...] [--turn-ms 400] [--out FILE]

The suite's races change contenders every millisecond or so, at one clock. Here each runs for long
enough that the clock follows what it draws from the power limit, in turns A B B A. Takes the
configurations of results/<gpu>/suite-*-large.json; sustained timing.
"""

import argparse
import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from record import folder_of, stamp, write

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import detect
from autoswizzle.laboratory import compile_ahead, run_kernel
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurer

SHAPES = (
    "8192x8192x8192", "16384x16384x16384", "8192x32768x8192", "32768x8192x2048", "8192x8192x1024",
)  # fmt: skip
ROUNDS = 8  # of two turns for each


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    suites = ["bf16-nt", "bf16-nn", "bf16-tn", "fp16-nt"]
    parser.add_argument("--suites", nargs="*", default=suites)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--turn-ms", type=float, default=400)
    parser.add_argument("--found", type=Path, help="folder of the suite's results")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = detect(0)
    rows: list[dict[str, Any]] = []
    for name in options.suites:
        path = (options.found or folder_of(gpu)) / f"suite-{name}-large.json"
        for row in json.loads(path.read_text())["rows"]:
            problem = GemmProblem.parse(row["problem"])
            if f"{problem.m}x{problem.n}x{problem.k}" not in options.shapes or "error" in row:
                continue
            config = GemmConfig.from_dict(row["config"])
            compile_ahead([config], problem, gpu)
            race = Measurer(problem, gpu, run_kernel).race(
                [config, TORCH], 2 * ROUNDS * options.turn_ms, options.turn_ms
            )
            ratio, low, high = race.ratio()
            rows.append(
                {
                    "problem": str(problem), "config": config.to_dict(), "ratio": ratio,
                    "ratio_low": low, "ratio_high": high, "at_one_clock": row["ratio"],
                    "time_us": race.measurements[0].time_us,
                }
            )  # fmt: skip
            print(
                f"{problem!s:30} {ratio:.3f} [{low:.3f}, {high:.3f}], at one clock "
                f"{row['ratio']:.3f}", flush=True,
            )  # fmt: skip
            made = {**stamp(gpu), "turn_ms": options.turn_ms}
            geomean = geometric_mean(row["ratio"] for row in rows)
            write(
                options.out or folder_of(gpu) / "steady.json",
                {**made, "geomean": geomean, "rows": rows},
            )


if __name__ == "__main__":
    main()
