"""Bring the tables of docs/results.md up to date from the files in results/h200.

    python benchmarks/results_page.py [--check]

Tables are replaced in place, with the number of rows that say `since`; heads and prose stay.
--check changes nothing, names the tables that differ and exits with 1 where there are any.
"""

import argparse
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from record import RESULTS
from suite import large

from autoswizzle.config import GemmConfig

PAGE = Path(__file__).parents[1] / "docs/results.md"
FILES = RESULTS / "h200"
SUITES = [(dtype, layout) for dtype in ("bf16", "fp16") for layout in ("nt", "nn", "tn")]
# Where several have a problem, the last.
NARROW = ("tune-wall-0of3", "tune-wall-1of3", "tune-wall-2of3", "suite-bf16-nt-some")
PADDED = "4095x4097x4099"  # TMA can't address it; the page's means are with and without it
SINCE = re.compile(r"(?<=`since` \()\d+ of \d+(?=\))")

Row = dict[str, Any]
Cells = list[str]


class Table(NamedTuple):
    """The first table of a section whose head begins so, and what its rows are made from."""

    title: str
    head: str
    rows: Callable[[], list[Cells]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    made, changed = updated(page)
    for name in changed:
        print(f"{name} {'differs' if options.check else 'updated'}")
    if options.check:
        raise SystemExit(1 if changed else 0)
    if changed:
        PAGE.write_text(made)


def updated(page: str) -> tuple[str, list[str]]:
    """The page with its tables made anew, and the names of those that this changed."""
    changed = []
    for table in TABLES:
        text = "".join(f"| {' | '.join(cells)} |\n" for cells in table.rows())
        start, end = place(page, table)
        if page[start:end] != text:
            changed.append(f"{table.title.lstrip('# ')} ({table.head})")
            page = page[:start] + text + page[end:]
    counted = SINCE.sub(since(), page)
    if counted != page:
        changed.append("number of rows that say `since`")
    return counted, changed


def place(page: str, table: Table) -> tuple[int, int]:
    """Where the table's rows begin and end in page."""
    section = rf"^{re.escape(table.title)}\n(?:(?!#).*\n)*?"
    found = re.search(rf"{section}\| {re.escape(table.head)}.*\n\|-.*\n((?:\|.*\n)*)", page, re.M)
    if found is None:
        raise SystemExit(f"{PAGE} must have a table | {table.head} under {table.title}, got none")
    return found.span(1)


def since() -> str:
    """How many rows of the large problems were measured before the last edit of their kernel."""
    rows = [row for suite in SUITES for row in large_rows(*suite).values()]
    return f"{sum('since' in row for row in rows)} of {len(rows)}"


def geomeans() -> list[Cells]:
    return [geomeans_of(dtype, layout) for dtype, layout in SUITES]


def geomeans_of(dtype: str, layout: str) -> Cells:
    rows = large_rows(dtype, layout)
    addressed = [row["ratio"] for name, row in rows.items() if name != PADDED]
    return [
        f"{dtype} {layout}", str(len(set(large(dtype, layout)))), str(len(rows)),
        geomean([row["ratio"] for row in rows.values()]), geomean(addressed),
        str(sum(ratio < 0.97 for ratio in addressed)),
        geomean([row["own"]["ratio"] for row in rows.values()]),
    ]  # fmt: skip


def geomean(ratios: list[float]) -> str:
    return f"{geometric_mean(ratios):.3f}" if ratios else "-"


def large_problems() -> list[Cells]:
    suites = [large_rows(*suite) for suite in SUITES]
    names = sorted({name for rows in suites for name in rows}, key=largest_first)
    return [large_problem(name, [rows.get(name) for rows in suites]) for name in names]


def large_problem(name: str, found: list[Row | None]) -> Cells:
    ratios = [f"{row['ratio']:.3f}, {row['own']['ratio']:.3f}" if row else "-" for row in found]
    return [name, *ratios, configuration(found[0]["config"]) if found[0] else "-"]


def largest_first(name: str) -> tuple[int, str]:
    return -math.prod(map(int, name.split("x"))), name


def quack() -> list[Cells]:
    return [
        [extents(row), f"{row['over_quack'][0]:.3f}", f"{row['over_torch'][0]:.3f}"]
        for row in results("quack")["rows"]
    ]


def narrow_problems() -> list[Cells]:
    latest = {name: row for file in NARROW for name, row in measured(file).items()}
    above = {extents(row) for row in results("suite-bf16-nt-large")["rows"]}
    rest = [row for name, row in latest.items() if name not in above]
    return [
        [
            extents(row),
            interval(row["ratio"], row["ratio_low"], row["ratio_high"]),
            configuration(row["config"]),
        ]
        for row in sorted(rest, key=lambda row: -row["ratio"])
    ]


def orders() -> list[Cells]:
    return [
        [
            item["problem"], item["best"], f"{item['over_row']:.2f}x",
            f"{item['over_column']:.2f}x", f"{item['spearman']:.2f}",
        ]
        for item in results("order_sweep")["problems"]
    ]  # fmt: skip


def model() -> list[Cells]:
    return [
        [
            row["case"], row["mode"], interval(row["ratio"], row["low"], row["high"]),
            f"{row['plain_us'] / 1000:.2f}", f"{row['gemm_share']:.2f}",
            f"{row['own_kernels']} of {row['problems']}",
        ]
        for row in results("model")["rows"]
    ]  # fmt: skip


def host_time() -> list[Cells]:
    return [
        [
            row["name"], f"{row['us']:.2f}", f"{row['ratio']:.3f}", row["base"],
            "-" if row["bound"] is None else f"{row['bound']:.2f}",
        ]
        for row in results("host-overhead")["rows"]
    ]  # fmt: skip


def results(name: str) -> Row:
    made: Row = json.loads((FILES / f"{name}.json").read_text())
    return made


def measured(name: str) -> dict[str, Row]:
    """A file's rows by extents, without those that failed."""
    return {extents(row): row for row in results(name)["rows"] if "config" in row}


def large_rows(dtype: str, layout: str) -> dict[str, Row]:
    return measured(f"suite-{dtype}-{layout}-large")


def extents(row: Row) -> str:
    name: str = row["problem"].split(":")[0]
    return name


def interval(ratio: float, low: float, high: float) -> str:
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def configuration(data: Row) -> str:
    """What a launch is, without warps and stages: family, tile, order, how work is shared."""
    config = GemmConfig.from_dict(data)
    parts = {
        config.kernel: True,
        config.tile: True,
        config.order: config.kernel != "gemv",
        f"split_k {config.split_k}": config.split_k > 1,
        "stream_k": config.stream_k,
        "swap_ab": config.swap_ab,
        config.warp_specialize: config.warp_specialize != "none",
    }
    return " ".join(name for name, shown in parts.items() if shown)


LARGE = "## Large problems, own kernels against torch.matmul"
TABLES = [
    Table(LARGE, "| problems with", geomeans),
    Table(LARGE, "problem |", large_problems),
    Table("### Beside quack", "problem |", quack),
    Table("### Narrow problems", "problem |", narrow_problems),
    Table("## What the tile order is worth", "problem |", orders),
    Table("## A model", "case |", model),
    Table("## Host time of a call", "call |", host_time),
]


if __name__ == "__main__":
    main()
