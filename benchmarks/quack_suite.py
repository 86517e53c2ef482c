"""Own kernels and torch.matmul against quack, tuned by its own tuner, in the same run.

    python benchmarks/quack_suite.py [--problems ...] [--known RESULT ...] [--out FILE]

On nine bf16 nt problems where both have a kernel: the best of ours by a search of 40 trials, of
which the winners of --known are the first, the autotuned gemm of quack and torch run interleaved,
each checked first, sustained timing. Needs quack-kernels with nvidia-cutlass-dsl. Writes
results/<gpu>/quack.json.
"""

import argparse
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from record import Winners, folder_of, results_file, stamp, write

from autoswizzle import kernels
from autoswizzle.calibration import calibrated
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import detect
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.measure import Measurer, Race

SHAPES = (
    "8192x8192x8192", "4096x4096x4096", "8192x8192x1024", "1024x6144x4096", "16384x1024x1024",
    "3000x3000x3000", "128x6144x4096", "1024x1024x16384", "16x4096x14336",
)  # fmt: skip
TRIALS = 40
RACE_MS = 300.0
QUACK = GemmConfig(max_registers=1)  # stands for quack among the contenders; no kernel of ours
NAMES = ("ours", "quack", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="*", default=[f"{s}:bf16:nt" for s in SHAPES])
    parser.add_argument("--known", type=results_file, nargs="*", default=[])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = calibrated(detect(0))
    effort = replace(EFFORTS["standard"], name="suite").with_budget(trials=options.trials)
    path = options.out or folder_of(gpu) / "quack.json"
    known = Winners(options.known)
    rows: list[dict[str, Any]] = []
    with closing(Laboratory(gpu, 0, effort, None)) as laboratory:
        for text in options.problems:
            problem = GemmProblem.parse(text)
            final = laboratory.search(problem, seeds=known.of(problem)).final
            if final is not None:
                contenders = (final.fastest, QUACK, TORCH)
                found = Measurer(problem, gpu, multiply).race(contenders, RACE_MS)
                rows.append(row_of(problem, final.fastest, found))
                print(line(rows[-1]), flush=True)
                made = {**stamp(gpu), "quack": version("quack-kernels")}
                write(path, {**made, **summary(rows)})


def multiply(
    config: GemmConfig, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> None:
    """Launch quack's product, or one of our kernels."""
    from quack.gemm_interface import gemm

    if config == QUACK:
        gemm(a, b, out=out, tuned=True)
    else:
        kernels.run(config, problem, a, b, out)


def row_of(problem: GemmProblem, config: GemmConfig, race: Race) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": str(problem), "config": config.to_dict()}
    for place, (name, measurement) in enumerate(zip(NAMES, race.measurements, strict=True)):
        row[f"{name}_us"] = measurement.time_us
        if place > 0:
            row[f"over_{name}"] = race.ratio(place)
    return row


def line(row: dict[str, Any]) -> str:
    (quack, *within), (torch_ratio, *_) = row["over_quack"], row["over_torch"]
    return (
        f"{row['problem']:28} over quack {quack:.3f} [{within[0]:.3f}, {within[1]:.3f}], "
        f"over torch {torch_ratio:.3f}"
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = {
        f"geomean_over_{name}": geometric_mean(row[f"over_{name}"][0] for row in rows)
        for name in NAMES[1:]
    }
    return {**found, "rows": rows}


if __name__ == "__main__":
    main()
