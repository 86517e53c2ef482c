"""DRAM bytes of our kernels by hardware counters, beside what the L2 model predicts.

    python benchmarks/counters.py [--fitting] [--ncu ncu] [--out FILE]

Default list: four shapes x nine group sizes of the wgmma kernel, where the order decides, and six
more shapes x six orders x three tiles. All are compiled ahead in parallel; then one profiled
process launches each once, on a cold L2 and with the clocks as they are. Writes l2_counters.json,
which benchmarks/predictor.py reads, and prints the errors of the model "l2". --fitting: six shapes
that are reported nowhere, for what in the model has to be fitted (fitting_counters.json).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from record import folder_of, stamp, write

from autoswizzle.config import GROUPED_SWIZZLES, GemmConfig
from autoswizzle.errors import CandidateError
from autoswizzle.hardware import Gpu, detect
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import predict
from autoswizzle.simulator.resources import Resources, resident_blocks
from autoswizzle.smem_bench import parse_counters
from autoswizzle.space import why_illegal

METRICS = {
    "measured_dram_read_bytes": "dram__bytes_read.sum",
    "measured_dram_write_bytes": "dram__bytes_write.sum",
    "measured_l2_sector_hit_pct": "lts__t_sector_hit_rate.pct",
}
KERNELS = (
    "regex:^(pointer_gemm|gemv|skinny|tma_gemm|mma_sync_gemm|specialized|pipelined|multicast)$"
)
GROUP_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 64)
GROUPED_SHAPES = ("8192x32768x8192", "16384x16384x4096", "8192x8192x8192", "32768x8192x2048")
MORE_SHAPES = (
    "6144x16384x4096", "16384x6144x8192", "4096x28672x8192", "12288x12288x3072", "5120x20480x5120",
    "10240x10240x10240",
)  # fmt: skip
FITTING_SHAPES = (
    "7168x14336x6144", "9216x9216x9216", "20480x4096x6144", "4096x24576x6144", "14336x7168x3072",
    "6144x6144x12288",
)  # fmt: skip
ORDERS = (("row", 0), ("column", 0), ("grouped", 8), ("grouped_n", 16), ("serpentine", 8),
          ("hilbert", 0))  # fmt: skip
WIDE = GemmConfig(
    kernel="wgmma", block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=4,
    persistent=True, epilogue_subtile=4, warp_specialize="cooperative",
)  # fmt: skip
HIGH = replace(WIDE, block_m=256, block_n=128, num_stages=3, epilogue_subtile=2)
SMALL = GemmConfig(block_m=128, block_n=128, block_k=32, num_warps=4, num_stages=3)
TILES = (WIDE, HIGH, SMALL)
LIMIT_S = 600.0

Point = tuple[GemmProblem, GemmConfig]


def default_points() -> list[Point]:
    """About 150 launches; the list of the module docstring."""
    grouped = [
        (GemmProblem.parse(f"{shape}:bf16:nt"), replace(WIDE, swizzle="grouped", group_size=size))
        for shape in GROUPED_SHAPES
        for size in GROUP_SIZES
    ]
    more = [
        (GemmProblem.parse(f"{shape}:bf16:nt"), ordered(tile, swizzle, size))
        for shape in MORE_SHAPES
        for tile in TILES
        for swizzle, size in ORDERS
    ]
    return grouped + more


def fitting_points() -> list[Point]:
    """About 150 more, of shapes that the model is not judged on."""
    found = []
    for shape in FITTING_SHAPES:
        problem = GemmProblem.parse(f"{shape}:bf16:nt")
        found += [(problem, ordered(tile, *order)) for tile in TILES for order in ORDERS]
        found += [(problem, ordered(WIDE, "grouped", size)) for size in (1, 2, 4, 16, 32, 64)]
    return found


def ordered(tile: GemmConfig, swizzle: str, group_size: int) -> GemmConfig:
    size = group_size if swizzle in GROUPED_SWIZZLES else GemmConfig().group_size
    return replace(tile, swizzle=swizzle, group_size=size)


def compiled(points: Sequence[Point], gpu: Gpu) -> list[tuple[Point, Resources]]:
    """The points that compile and fit, with what they take; the others are named."""
    from autoswizzle.laboratory import compilers_for

    legal = [
        (problem, config) for problem, config in points if legal_or_named(problem, config, gpu)
    ]
    found = []
    with closing(compilers_for(gpu)) as compilers:
        compilers.prefetch([(config, problem) for problem, config in legal])
        for problem, config in legal:
            try:
                found.append(((problem, config), compilers((config, problem))))
            except CandidateError as error:
                print(f"left out: {problem} {config}: {error}")
    return found


def legal_or_named(problem: GemmProblem, config: GemmConfig, gpu: Gpu) -> bool:
    why = why_illegal(config, problem, gpu)
    if why is not None:
        print(f"left out: {problem} {config}: {why}")
    return why is None


def count(points: Sequence[Point], ncu: str) -> list[dict[str, float]]:
    """The counters of one launch of each point, in order, by one run of Nsight Compute."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as work:
        json.dump([[str(problem), config.to_dict()] for problem, config in points], work)
        work.flush()
        command = [
            *(ncu, "--clock-control", "none", "--cache-control", "all", "--csv"),
            *("--print-units", "base", "--kernel-name", KERNELS),
            *("--metrics", ",".join(METRICS.values())),
            *(sys.executable, __file__, "--launch", work.name),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    counted = parse_counters(done.stdout, METRICS)
    if len(counted) != len(points):
        said = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise SystemExit(f"ncu must count {len(points)} launches, got {len(counted)}: {said}")
    return counted


def launch(path: Path) -> None:
    """Launch every point of a file once, for the profiler; operands are shared by a problem's."""
    import torch

    from autoswizzle import kernels
    from autoswizzle.search.measure import make_inputs, make_output

    for text, points in groupby(json.loads(path.read_text()), key=lambda point: point[0]):
        problem = GemmProblem.parse(text)
        a, b = make_inputs(problem, "cuda", 0)
        out = make_output(problem, "cuda")
        for _, config in points:
            kernels.run(GemmConfig.from_dict(config), problem, a, b, out)
        torch.cuda.synchronize()


def rows_of(
    points: Sequence[tuple[Point, Resources]], counted: Sequence[dict[str, float]], gpu: Gpu
) -> Iterator[dict[str, Any]]:
    """A row of the result file for each point."""
    for ((problem, config), resources), counters in zip(points, counted, strict=True):
        expected = predict(problem, config, gpu, resources, model="l2")
        yield {
            "problem": str(problem),
            "config": config.to_dict(),
            "resident": resident_blocks(resources, gpu) * gpu.num_sms,
            "predicted_dram_read_bytes": expected.dram_read_bytes,
            **{name: round(value, 2) for name, value in counters.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fitting", action="store_true")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch is not None:
        launch(options.launch)
        return
    gpu = detect(0)
    began = time.monotonic()
    points = compiled(fitting_points() if options.fitting else default_points(), gpu)
    print(f"{len(points)} points compiled in {time.monotonic() - began:.0f} s", flush=True)
    rows = list(rows_of(points, count([point for point, _ in points], options.ncu), gpu))
    name = "fitting_counters.json" if options.fitting else "l2_counters.json"
    path = options.out or folder_of(gpu) / name
    write(path, {**stamp(gpu), "metrics": METRICS, "rows": rows})
    ratios = [row["predicted_dram_read_bytes"] / row["measured_dram_read_bytes"] for row in rows]
    errors = np.abs(np.array(ratios) - 1)
    worst = rows[int(errors.argmax())]
    print(
        f"{len(rows)} rows in {time.monotonic() - began:.0f} s: median {np.median(errors):.1%}, "
        f"90 % {np.quantile(errors, 0.9):.1%}, worst {errors.max():.1%}: "
        f"{worst['problem']} {GemmConfig.from_dict(worst['config'])}"
    )
    print("wrote", path)


if __name__ == "__main__":
    main()
