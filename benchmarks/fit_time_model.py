"""Fit the coefficients of the time model to measured tables, and judge it on other problems.

    python benchmarks/fit_time_model.py TABLE.json... [--model lru] [--folds 4]
        [--calibration FILE] [--out FILE]

A table is a file of benchmarks/time_tables.py, or a result of benchmarks/gemm_suite.py (its
screened configurations). Where tables of the problems in suite.FITTING are among them, coefficients
are fitted on those and judged on the others; else each fold of problems is judged by coefficients
fitted on the other folds. Prints, for each problem, the rank correlation of predicted and measured
times, and how much slower than the best measured the best of the eight predicted fastest is; first
for the present coefficients, then for the fitted ones. No GPU is needed.

A residual is log(predicted / measured) less the problem's own level, as short timings run at other
clocks than long ones and a level ranks nothing; slow configurations count for less (best time over
time). Fits start from NEUTRAL, which no measurement chose, and stay near it where the tables say
nothing (PRIOR): starting from the present coefficients would let them pass on what they were fitted
to. Equal predictions are taken to come slowest first.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from calibration import stranger
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import spearmanr
from suite import FITTING

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.hardware import Gpu, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.cost import FITTED, Coefficients, terms
from autoswizzle.simulator.ranking import predict
from autoswizzle.simulator.resources import estimate

Floats = NDArray[np.float64]
NAMES = tuple(item.name for item in fields(Coefficients))
PRIOR = 0.05
SOFT = 0.05  # residuals beyond it count by their size, not its square
TOP = 8
NEUTRAL = replace(
    FITTED, pointer=1.0, tma=1.0, none=1.0, cooperative=1.0, pingpong=1.0, serial_share=1.0,
    step_us=0.01, load_latency_us=1.0, l2_share=1.0, l2_overlap=4.0, dram_overlap=4.0,
    store_bytes_per_sm_us=50_000, partial_bytes_per_sm_us=50_000, spill_bytes_per_sm_us=50_000,
)  # fmt: skip
LEAST_ROWS = 10  # of a table: fewer rank nothing


@dataclass(frozen=True)
class Row:
    """One measured configuration and what of its prediction the coefficients do not change."""

    config: GemmConfig
    blocks: int
    spill_bytes: int
    dram_read_bytes: int
    time_us: float


@dataclass(frozen=True)
class Table:
    """The rows of one problem."""

    problem: GemmProblem
    gpu: Gpu
    rows: tuple[Row, ...]

    @property
    def measured(self) -> Floats:
        return np.array([row.time_us for row in self.rows])

    def predicted(self, fitted: Coefficients) -> Floats:
        return np.array(
            [
                terms(
                    row.config,
                    self.problem,
                    self.gpu,
                    row.blocks,
                    row.dram_read_bytes,
                    fitted,
                    row.spill_bytes,
                ).total
                for row in self.rows
            ]
        )


def tables_of(path: Path, model: str, gpu: Gpu | None = None) -> list[Table]:
    """The tables of a file of either form. gpu: facts to take for those of the named GPU."""
    data = json.loads(path.read_text())
    gpu = gpu or find_gpu(data["gpu"])
    if "measurements" in data:
        return [_table(data["problem"], gpu, data["measurements"], model)]
    return [
        _table(row["problem"], gpu, row["screened"], model)
        for row in data["rows"]
        if "screened" in row
    ]


def _table(text: str, gpu: Gpu, measured: Sequence[dict[str, Any]], model: str) -> Table:
    problem = GemmProblem.parse(text)
    rows = []
    for item in measured:
        config = GemmConfig.from_dict(item["config"])
        try:
            found = predict(problem, config, gpu, model=model)
        except ConfigError:  # torch, or what the closed form takes for too large
            continue
        blocks = found.resident // gpu.num_sms
        spills = estimate(config, problem, gpu).spill_bytes
        rows.append(Row(config, blocks, spills, found.dram_read_bytes, item["time_us"]))
    return Table(problem, gpu, tuple(rows))


def fit(tables: Sequence[Table], start: Coefficients = NEUTRAL) -> Coefficients:
    """Coefficients by least squares of the residuals of the module docstring."""
    origin = np.log([getattr(start, name) for name in NAMES])

    def residuals(x: Floats) -> Floats:
        fitted = _coefficients(x)
        found = [PRIOR * (x - origin)]
        for table in tables:
            weight = table.measured.min() / table.measured
            error = np.log(table.predicted(fitted) / table.measured)
            level = np.average(error, weights=weight)
            found.append(weight * (error - level))
        return np.concatenate(found)

    return _coefficients(least_squares(residuals, origin, loss="soft_l1", f_scale=SOFT).x)


def _coefficients(logarithms: Floats) -> Coefficients:
    values = map(float, np.exp(logarithms))
    return Coefficients(**dict(zip(NAMES, values, strict=True)))


def judged(table: Table, fitted: Coefficients) -> dict[str, Any]:
    """How well the model ranks a table."""
    predicted, measured = table.predicted(fitted), table.measured
    first = np.lexsort((-measured, predicted))[:TOP]
    best = measured[first].min() / measured.min() - 1
    return {
        "problem": str(table.problem),
        "configs": len(measured),
        "spearman": float(spearmanr(predicted, measured).statistic),
        "gap_of_top": float(best),
        "predicted_over_measured": float(np.median(predicted / measured)),
    }


def judged_by_others(
    tables: Sequence[Table], folds: int
) -> list[tuple[dict[str, Any], Coefficients]]:
    """Every table that is not fitted on, with coefficients fitted on other problems."""
    for_fitting = [t for t in tables if (t.problem.m, t.problem.n, t.problem.k) in FITTING]
    if for_fitting:
        fitted = fit(for_fitting)
        return [(judged(t, fitted), fitted) for t in tables if t not in for_fitting]
    problems = sorted({str(table.problem) for table in tables})
    fold = {problem: index % folds for index, problem in enumerate(problems)}
    fits = [
        fit([table for table in tables if fold[str(table.problem)] != left_out])
        for left_out in range(min(folds, len(problems)))
    ]
    return [(judged(t, fits[fold[str(t.problem)]]), fits[fold[str(t.problem)]]) for t in tables]


def summary(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    rho = [row["spearman"] for row in results]
    gaps = [row["gap_of_top"] for row in results]
    return {
        "median_spearman": float(np.median(rho)),
        "least_spearman": min(rho),
        "median_gap": float(np.median(gaps)),
        "worst_gap": max(gaps),
    }


def show(title: str, results: Sequence[dict[str, Any]]) -> None:
    print(f"{title:34} {'n':>4} {'rho':>6} {'best of top 8':>14} {'predicted/measured':>19}")
    for row in results:
        print(
            f"{row['problem']:34} {row['configs']:4} {row['spearman']:6.2f} "
            f"{row['gap_of_top']:14.1%} {row['predicted_over_measured']:19.2f}"
        )
    found = summary(results)
    print(
        f"median rho {found['median_spearman']:.2f}, gap {found['median_gap']:.1%} in the median, "
        f"{found['worst_gap']:.1%} at worst\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--model", choices=("lru", "l2"), default="lru")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calibration", type=Path, help="a result of benchmarks/calibration.py")
    given = parser.parse_args(arguments)
    gpu = None if given.calibration is None else stranger(given.calibration)
    tables = [t for path in given.tables for t in tables_of(path, given.model, gpu)]
    tables = [table for table in tables if len(table.rows) >= LEAST_ROWS]
    present = [judged(table, FITTED) for table in tables]
    show("present coefficients", present)
    others = judged_by_others(tables, given.folds)
    show("fitted on other problems", [row for row, _ in others])
    fits = list(dict.fromkeys(fitted for _, fitted in others))
    if len(fits) > 1:
        fits.append(fit(tables))
    print(f"{'coefficient':24} {'present':>10}  fitted" + (", all last" if len(fits) > 1 else ""))
    for name in NAMES:
        values = " ".join(f"{getattr(fitted, name):10.4g}" for fitted in fits)
        print(f"{name:24} {getattr(FITTED, name):10.4g} {values}")
    if given.out is not None:
        said = sys.argv[1:] if arguments is None else arguments
        record = {
            "command": " ".join(["python benchmarks/fit_time_model.py", *map(str, said)]),
            "date": date.today().isoformat(),
            "model": given.model,
            "present": {"summary": summary(present), "problems": present},
            "fitted_on_others": {
                "summary": summary([row for row, _ in others]),
                "problems": [row for row, _ in others],
            },
            "coefficients": [asdict(fitted) for fitted in fits],
        }
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
