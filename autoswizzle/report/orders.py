"""The table of one configuration under every tile order, and how well the model ranks them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autoswizzle.config import GROUPED_SWIZZLES
from autoswizzle.report.tables import byte_size, table

if TYPE_CHECKING:
    from autoswizzle.order_bench import OrderRow


def order_table(rows: Sequence["OrderRow"]) -> str:
    """A line for each order and group size: prediction, time, rate."""
    titles = ("order", "group", "L2 hit %", "DRAM read", "ms", "TFLOPS")
    return table(titles, [_line(row) for row in rows])


def correlations(rows: Sequence["OrderRow"]) -> dict[str, float | None]:
    """Spearman's rank correlations with tied ranks averaged, None where one side is constant.

    hit_rate_tflops: predicted hit rate and achieved rate. dram_time: predicted DRAM reads and time.
    """
    times = [row.measurement.time_us for row in rows]
    rates = [row.tflops for row in rows]
    return {
        "hit_rate_tflops": _spearman([row.prediction.l2_hit_rate for row in rows], rates),
        "dram_time": _spearman([row.prediction.dram_read_bytes for row in rows], times),
    }


def _line(row: "OrderRow") -> tuple[object, ...]:
    config = row.prediction.config
    return (
        config.swizzle,
        config.group_size if config.swizzle in GROUPED_SWIZZLES else None,
        f"{100 * row.prediction.l2_hit_rate:.2f}",
        byte_size(row.prediction.dram_read_bytes),
        f"{row.measurement.time_us / 1e3:.3f}",
        f"{row.tflops:.2f}",
    )


def _spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    from scipy.stats import spearmanr

    value = float(spearmanr(first, second).statistic)
    return value if math.isfinite(value) else None
