"""The tables of one kernel under every shared-memory layout: conflicts, speed, stalls."""

from collections.abc import Mapping, Sequence

from autoswizzle.problem import GemmProblem
from autoswizzle.report.tables import table
from autoswizzle.smem_bench import (
    STALLS,
    LayoutRow,
    predicted_accesses,
    predicted_conflicts,
)

STALLS_SHOWN = 3


def layout_table(rows: Sequence[LayoutRow], problem: GemmProblem) -> str:
    """A line for each layout: registers, predicted ways and conflicts, time, rate."""
    titles = ("A", "B", "C", "registers", "spills", "A ways", "B ways", "C ways")
    lines = []
    for row in rows:
        loads, stores = predicted_conflicts(row.accesses)
        ways = [row.accesses[name].ways for name in ("a_read", "b_read", "c_store")]
        time_us, rate = row.measurement.time_us, row.measurement.tflops(problem)
        spills = f"{row.resources.spill_bytes} B"
        lines.append((*_layout(row), spills, *ways, loads, stores, time_us, rate))
    return table((*titles, "load conflicts", "store conflicts", "us", "TFLOPS"), lines)


def counter_table(
    rows: Sequence[LayoutRow], counts: Sequence[Mapping[str, float]], problem: GemmProblem
) -> str:
    """A line for each layout: conflicts counted over predicted, and the main stall reasons."""
    lines = []
    for row, count in zip(rows, counts, strict=True):
        loads, stores = predicted_conflicts(predicted_accesses(row.config, problem))
        stalls = sorted((name for name in STALLS if name in count), key=lambda name: -count[name])
        main = ", ".join(f"{name} {count[name]:.2f}" for name in stalls[:STALLS_SHOWN])
        counted = (count["load_conflicts"], loads, count["store_conflicts"], stores)
        lines.append((*_layout(row), *map(int, counted), main))
    titles = ("A", "B", "C", "registers", "loads", "predicted", "stores", "predicted")
    return table((*titles, "main stalls, warps an issue"), lines)


def _layout(row: LayoutRow) -> tuple[object, ...]:
    config = row.config
    return config.smem_a, config.smem_b, config.smem_c, row.resources.registers
