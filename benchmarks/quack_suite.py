"""Own kernels and torch.matmul against quack, tuned by its own tuner, in the same run.

    python benchmarks/quack_suite.py [--problems ...] [--out FILE]

On nine bf16 nt problems where both have a kernel: the best of ours by gemm_suite's search, quack's
autotuned gemm and torch run interleaved, sustained timing (CUDA graphs over rotated buffers). Needs
quack-kernels with nvidia-cutlass-dsl. Writes results/<gpu>/quack.json.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from record import folder_of, stamp, write

from autoswizzle import kernels
from autoswizzle.calibration import calibrated
from autoswizzle.hardware import detect
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.measure import ROTATION, make_inputs, make_output
from autoswizzle.search.statistics import median_interval
from autoswizzle.search.timing import CudaBackend, interleaved, loop

SHAPES = (
    "8192x8192x8192", "4096x4096x4096", "8192x8192x1024", "1024x6144x4096", "16384x1024x1024",
    "3000x3000x3000", "128x6144x4096", "1024x1024x16384", "16x4096x14336",
)  # fmt: skip
RACE_MS = 300.0
NAMES = ("ours", "quack", "torch")

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def main() -> None:
    from quack.gemm_interface import gemm

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="*", default=[f"{s}:bf16:nt" for s in SHAPES])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = calibrated(detect(0))
    effort = replace(EFFORTS["standard"], name="suite", seconds=math.inf, min_gain=0.0)
    path = options.out or folder_of(gpu) / "quack.json"
    rows: list[dict[str, Any]] = []
    with Laboratory(gpu, 0, effort.with_budget(trials=40), None) as laboratory:
        for text in options.problems:
            problem = GemmProblem.parse(text)
            found = laboratory.search(problem).final
            if found is None:
                continue
            config = found.fastest

            def ours(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> object:
                return kernels.run(config, problem, a, b, out)  # noqa: B023 - called in this turn

            times = race(
                problem,
                (
                    ours,
                    lambda a, b, out: gemm(a, b, out=out, tuned=True),
                    lambda a, b, out: torch.matmul(a, b, out=out),
                ),
                gpu.l2_bytes,
            )
            rows.append(row_of(problem, config.to_dict(), times))
            print(line(rows[-1]), flush=True)
            write(path, {**stamp(gpu), "quack": version("quack-kernels"), **summary(rows)})


def race(
    problem: GemmProblem, contenders: tuple[Multiply, ...], l2_bytes: int
) -> list[tuple[float, ...]]:
    """Each contender's time in every round, microseconds, each checked against torch first."""
    backend = CudaBackend(l2_bytes)
    sets = max(1, -(-ROTATION * l2_bytes // problem.min_bytes))
    buffers = [(*make_inputs(problem, "cuda", seed), make_output(problem, "cuda"))
               for seed in range(min(sets, 64))]  # fmt: skip
    a, b, out = buffers[0]
    expected = torch.matmul(a, b).float()
    loops = []
    for multiply in contenders:
        out.fill_(float("nan"))
        multiply(a, b, out)
        torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02 * problem.k**0.5)
        loops.append(loop([lambda s=s, f=multiply: f(*s) for s in buffers], backend))  # type: ignore[misc]
    return interleaved(loops, backend, RACE_MS)


def row_of(
    problem: GemmProblem, config: dict[str, Any], times: list[tuple[float, ...]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": str(problem), "config": config}
    for name, rounds in zip(NAMES, times, strict=True):
        row[f"{name}_us"] = median_interval(rounds)[0]
    for name, rounds in zip(NAMES[1:], times[1:], strict=True):
        ratios = [theirs / ours for ours, theirs in zip(times[0], rounds, strict=True)]
        row[f"over_{name}"] = median_interval(ratios)
    return row


def line(row: dict[str, Any]) -> str:
    (quack, *within), (torch_ratio, *_) = row["over_quack"], row["over_torch"]
    return (
        f"{row['problem']:28} over quack {quack:.3f} [{within[0]:.3f}, {within[1]:.3f}], "
        f"over torch {torch_ratio:.3f}"
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = {
        f"geomean_over_{name}": math.exp(
            sum(math.log(row[f"over_{name}"][0]) for row in rows) / len(rows)
        )
        for name in NAMES[1:]
    }
    return {**found, "rows": rows}


if __name__ == "__main__":
    main()
