"""The source article's experiment: one mma.sync kernel, only its shared-memory layouts changed.

    python benchmarks/smem_bench.py [--problem 8192x8192x8192:bf16:nt]
        [--count 4096x4096x4096:bf16:nt] [--rep-ms 200] [--out DIR]

Times every layout of A and B, of C, and caps on registers, in turns within each experiment; prints
TFLOP/s beside the predicted bank conflicts and, with Nsight Compute (ncu) on the PATH, the counted
ones and the main stall reasons of the --count problem. Writes DIR/<gpu>/smem.json.
"""

import argparse
import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autoswizzle.errors import UnavailableError
from autoswizzle.hardware import detect
from autoswizzle.problem import GemmProblem
from autoswizzle.smem_bench import (
    STALLS,
    LayoutRow,
    bench_layouts,
    count_conflicts,
    layout_configs,
    predicted_accesses,
    predicted_conflicts,
)

TITLES = (
    "A", "B", "C", "cap", "regs", "spill", "TFLOP/s", "A ways", "B ways", "C store", "ld conflicts",
    "st conflicts",
)  # fmt: skip
WIDTHS = (7, 7, 7, 4, 5, 6, 8, 7, 7, 8, 14, 14)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", type=GemmProblem.parse, default="8192x8192x8192:bf16:nt")
    parser.add_argument("--count", type=GemmProblem.parse, default="4096x4096x4096:bf16:nt")
    parser.add_argument("--rep-ms", type=float, default=200.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    gpu = detect()
    found: dict[str, list[LayoutRow]] = {}
    for name, configs in layout_configs().items():
        found[name] = bench_layouts(options.problem, configs, rep_ms=options.rep_ms)
        print(f"\n{name}, {options.problem} on {gpu.name} (conflicts predicted)")
        print_row(TITLES)
        for row in found[name]:
            print_row(cells(row, options.problem))
    counted = {name: counters(options.count, configs) for name, configs in layout_configs().items()}
    folder = options.out / gpu.name.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "claim": "shared-memory layouts of an mma.sync GEMM",
        "command": " ".join(sys.argv),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in ("autoswizzle", "torch", "triton")},
        "gpu": gpu.name,
        "problem": str(options.problem),
        "timed": {
            name: [
                row.to_dict() | {"tflops": row.measurement.tflops(options.problem)} for row in rows
            ]
            for name, rows in found.items()
        },
        "count_problem": str(options.count),
        "counted": counted,
    }
    path = folder / "smem.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {path}")
    return 0


def cells(row: LayoutRow, problem: GemmProblem) -> tuple[Any, ...]:
    config, accesses = row.config, row.accesses
    loads, stores = predicted_conflicts(accesses)
    return (
        config.smem_a, config.smem_b, config.smem_c, config.max_registers or "-",
        row.resources.registers, row.resources.spill_bytes,
        f"{row.measurement.tflops(problem):.1f}",
        *(accesses[name].ways for name in ("a_read", "b_read", "c_store")),
        f"{loads:,}", f"{stores:,}",
    )  # fmt: skip


def print_row(values: tuple[Any, ...]) -> None:
    columns = zip(values, WIDTHS, strict=True)
    print(" ".join(f"{value!s:>{width}}" for value, width in columns), flush=True)


def counters(problem: GemmProblem, configs: list[Any]) -> list[dict[str, Any]] | str:
    """Counters beside predictions of each configuration, or why there are none; printed."""
    try:
        counts = count_conflicts(problem, configs)
    except UnavailableError as error:
        print(f"\nno counters: {error}")
        return str(error)
    print(f"\ncounted / predicted on {problem}")
    rows = []
    for config, count in zip(configs, counts, strict=True):
        loads, stores = predicted_conflicts(predicted_accesses(config, problem))
        stalls = sorted((name for name in STALLS if name in count), key=lambda name: -count[name])
        layout = f"{config.smem_a:>7} {config.smem_b:>7} {config.smem_c:>7}"
        print(
            f"{layout} cap {config.max_registers:>3}  "
            f"ld {count['load_conflicts']:,.0f} / {loads:,}  "
            f"st {count['store_conflicts']:,.0f} / {stores:,}  "
            f"ldmatrix {count['ldmatrix']:,.0f}  stalls "
            + ", ".join(f"{name} {count[name]:.2f}" for name in stalls[:3]),
            flush=True,
        )
        rows.append({"config": config.to_dict(), "predicted": [loads, stores], "counted": count})
    return rows


if __name__ == "__main__":
    sys.exit(main())
