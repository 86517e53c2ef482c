"""All tile orders and group sizes of one near-peak kernel: time beside predicted traffic.

    python benchmarks/order_sweep.py [--problems TEXT...] [--out DIR] [--rep-ms 40]

Four large shapes, nn and nt, bf16, sustained timing: wgmma 128x256x64 cooperative, where the order
decides, as the arithmetic does not hide the traffic. Writes order_sweep.json; prints per problem
the best order, its gain over row-major and over column-major, and the rank correlation.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from record import folder_of, stamp, write

from autoswizzle.calibration import calibrated
from autoswizzle.config import GemmConfig
from autoswizzle.hardware import detect
from autoswizzle.order_bench import OrderRow, bench_orders
from autoswizzle.problem import GemmProblem
from autoswizzle.search.study import rank_correlation

SHAPES = ("8192x32768x8192", "16384x16384x4096", "8192x8192x8192", "32768x8192x2048")
PROBLEMS = tuple(f"{shape}:bf16:{layout}" for layout in ("nt", "nn") for shape in SHAPES)
GROUP_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 64)
BASE = GemmConfig(
    kernel="wgmma", block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=4,
    persistent=True, epilogue_subtile=4, warp_specialize="cooperative",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="*", default=PROBLEMS, help="the file keeps the others")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--warmup-ms", type=float, default=10)
    parser.add_argument("--rep-ms", type=float, default=40)
    options = parser.parse_args()
    gpu = calibrated(detect(0))
    path = (options.out or folder_of(gpu)) / "order_sweep.json"
    results = kept(path)
    for text in options.problems:
        began = time.monotonic()
        problem = GemmProblem.parse(text)
        rows = bench_orders(
            problem, BASE, timing="sustained", warmup_ms=options.warmup_ms,
            rep_ms=options.rep_ms, group_sizes=GROUP_SIZES, gpu=gpu,
        )  # fmt: skip
        found = results[text] = result_of(problem, rows)
        print(
            f"{problem} best {found['best']} {found['best_us']:.0f} us, over row "
            f"{found['over_row']:.3f}, over column {found['over_column']:.3f}, "
            f"rho(bytes, time) {found['spearman']:.2f}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        problems = list(results.values())
        write(path, {**stamp(gpu), "base": BASE.to_dict(), "problems": problems})


def kept(path: Path) -> dict[str, dict[str, Any]]:
    """By problem, what the file of before holds of the same configuration, and since when."""
    made = json.loads(path.read_text()) if path.exists() else {}
    if made.get("base") != BASE.to_dict():
        return {}
    since = {name: made[name] for name in ("date", "versions")}
    return {found["problem"]: {"since": since, **found} for found in made["problems"]}


def result_of(problem: GemmProblem, rows: list[OrderRow]) -> dict[str, Any]:
    times = {label(row): row.measurement.time_us for row in rows}
    best = min(times, key=times.__getitem__)
    traffic = [float(row.prediction.dram_read_bytes) for row in rows]
    return {
        "problem": str(problem),
        "best": best,
        "best_us": times[best],
        "over_row": times["row"] / times[best],
        "over_column": times["column"] / times[best],
        "spearman": rank_correlation(list(zip(traffic, times.values(), strict=True))),
        "rows": [
            {
                "order": label(row),
                "predicted_dram_read_bytes": row.prediction.dram_read_bytes,
                "predicted_us": row.prediction.time_us,
                "time_us": row.measurement.time_us,
                "low_us": row.measurement.low_us,
                "high_us": row.measurement.high_us,
            }
            for row in rows
        ],
    }


def label(row: OrderRow) -> str:
    config = row.prediction.config
    grouped = config.swizzle in ("grouped", "grouped_n", "serpentine")
    return f"{config.swizzle} {config.group_size}" if grouped else config.swizzle


if __name__ == "__main__":
    main()
