"""Rerun searches without a GPU against recorded tables: trials until within 2 % of the best.

    python benchmarks/search_replay.py TABLE.json... [--seeds 50] [--trials 200] [--jobs 2]
        [--sampler tpe] [--efforts quick standard] [--out FILE]

A table holds what was measured of one problem: {"problem": text, "gpu": name, "measurements":
[Measurement], "infeasible": [{"config", "kind", "reason"}], "predictions": [{"config",
"time_us"}]}. The last two may be missing; predictions are then made anew. The configurations of the
table are the space. A search seeded with the predictions, the same sampler unseeded, and one in
random order run with every seed; a search that never gets there counts as one trial more than it
made. --efforts: instead, searches of these efforts until they end by themselves: their trials, and
how far their best is from the table's.
"""

import argparse
import json
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

import joblib
import numpy as np

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import CandidateError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.measure import Measurement
from autoswizzle.search.sampling import SAMPLERS, SearchSpace
from autoswizzle.search.study import Progress, search
from autoswizzle.simulator.ranking import Prediction, rank
from autoswizzle.simulator.resources import Resources

CLOSE = 1.02  # of the best time
MODES = ("seeded", "unseeded", "random")
FITS = Resources(registers=32, shared_bytes=0, num_warps=4)  # the table says what fits


class Table(SearchSpace):
    """A recorded table as the space of a search; what it does not hold can't be tried."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(GemmProblem.parse(data["problem"]), find_gpu(data["gpu"]))
        measured = map(Measurement.from_dict, data["measurements"])
        self.measurements = {item.config: item for item in measured}
        self.failures = {
            GemmConfig.from_dict(item["config"]): CandidateError(item["reason"], item["kind"])
            for item in data.get("infeasible", [])
        }
        self.ours = [item for item in (*self.measurements, *self.failures) if item != TORCH]
        families = {config.kernel for config in self.ours}
        self.branches = {name: self.branches[name] for name in self.branches if name in families}
        stored = {
            GemmConfig.from_dict(item["config"]): item["time_us"]
            for item in data.get("predictions", [])
        }
        known = rank(self.problem, self.gpu, top=len(self.ours), configs=self.ours)
        self.predictions: list[Prediction] = sorted(
            (replace(item, time_us=stored.get(item.config, item.time_us)) for item in known),
            key=lambda item: item.time_us,
        )
        times = (item.time_us for config, item in self.measurements.items() if config != TORCH)
        self.close_us = CLOSE * min(times)

    def configs(self, kernel: str | None = None) -> Iterator[GemmConfig]:
        """Those of the table, or of one family of it."""
        yield from (config for config in self.ours if kernel in (None, config.kernel))

    def why_outside(self, config: GemmConfig) -> str | None:
        """Why config can't be replayed."""
        held = config in self.measurements or config in self.failures or config == TORCH
        return None if held else "config must be in the table"

    def is_worth_trying(self, config: GemmConfig) -> bool:
        """Whether the table holds config."""
        return config != TORCH and self.why_outside(config) is None

    def near(
        self, config: GemmConfig, taken: Collection[GemmConfig], generator: random.Random
    ) -> GemmConfig | None:
        """The most similar one of the table, which is a sample of the space, full of holes."""
        numbers, names = self._features
        here_numbers, here_names = _encoded([config])
        away = np.minimum(np.abs(numbers - here_numbers) / 2, 1).sum(axis=1)
        away += (names != here_names).sum(axis=1)
        for place in np.argsort(away, kind="stable"):
            if self.ours[place] not in taken:
                return self.ours[place]
        return None

    @cached_property
    def _features(self) -> tuple[Any, Any]:
        return _encoded(self.ours)

    def measure(self, config: GemmConfig) -> Measurement:
        """What was recorded; any time for torch, which is not searched for."""
        if config in self.failures:
            raise self.failures[config]
        if config == TORCH:
            return Measurement(TORCH, 1e9, 1e9, 1e9, "sustained")
        return self.measurements[config]


def _encoded(configs: Sequence[GemmConfig]) -> tuple[Any, Any]:
    """The numbers among the fields as powers of two, and the other fields."""
    rows = [asdict(config) for config in configs]
    numeric = [name for name, value in rows[0].items() if type(value) is int]
    numbers = [[np.log2(max(row[name], 1)) for name in numeric] for row in rows]
    names = [[str(row[name]) for name in row if name not in numeric] for row in rows]
    return np.array(numbers), np.array(names)


class Reached(Exception):  # noqa: N818 - ends a search, is no error
    """A configuration close to the best was tried."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Trials of each mode until within 2 % of the table's best, a count for every seed."""

    problem: str
    configs: int
    trials: dict[str, list[int]]


def replay(path: Path, seeds: int, trials: int, sampler: str) -> Replay:
    """Rerun the three searches of one table."""
    table = Table(json.loads(path.read_text()))
    needed = {
        mode: [_trials_needed(table, mode, seed, trials, sampler) for seed in range(seeds)]
        for mode in MODES
    }
    return Replay(str(table.problem), len(list(table.configs())), needed)


def _trials_needed(table: Table, mode: str, seed: int, trials: int, sampler: str) -> int:
    """Trials of ours until one is close to the best; one more than were made if none is."""
    tried: list[GemmConfig] = []
    shuffled = random.Random(seed).sample(table.ours, min(trials, len(table.ours)))

    def compile_(config: GemmConfig) -> Resources:
        tried.append(config)
        return FITS

    def stop_when_close(progress: Progress) -> None:
        last = progress.last
        if isinstance(last, Measurement) and last.time_us <= table.close_us:
            raise Reached

    try:
        search(
            table.problem,
            table.gpu,
            measure=table.measure,
            compile=compile_,
            predictions=table.predictions if mode == "seeded" else (),
            seeds=shuffled if mode == "random" else (),
            effort=EFFORTS["standard"].with_budget(trials=trials),
            storage=None,
            progress=stop_when_close,
            branches=table,
            sampler=sampler,
            seed=seed,
        )
    except Reached:
        return len(tried)
    return len(tried) + 1


@dataclass(frozen=True, slots=True)
class Ended:
    """Where seeded searches of each effort ended, by effort, for every seed."""

    problem: str
    trials: dict[str, list[int]]
    loss: dict[str, list[float]]  # time of the best found over that of the table, less 1


def ended(path: Path, seeds: int, efforts: Sequence[str]) -> Ended:
    """Let searches of one table end by themselves."""
    table = Table(json.loads(path.read_text()))
    found = Ended(
        str(table.problem), {name: [] for name in efforts}, {name: [] for name in efforts}
    )
    for name in efforts:
        for seed in range(seeds):
            result = search(
                table.problem,
                table.gpu,
                measure=table.measure,
                compile=lambda config: FITS,
                predictions=table.predictions,
                effort=EFFORTS[name],
                storage=None,
                branches=table,
                seed=seed,
            )
            found.trials[name].append(len(result.measurements) + len(result.infeasible))
            found.loss[name].append(CLOSE * result.best.time_us / table.close_us - 1)
    return found


def print_ends(rows: Sequence[Ended], efforts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Print and return each effort's trials and loss over all tables and seeds."""
    overall = {}
    for name in efforts:
        loss = [value for row in rows for value in row.loss[name]]
        overall[name] = {
            "trials": median(count for row in rows for count in row.trials[name]),
            "mean_loss": mean(loss),
            "most_loss": max(loss),
        }
        shown = overall[name]
        print(
            f"{name:10} {shown['trials']:g} trials in the median; from the best in the mean "
            f"{shown['mean_loss']:.2%}, at most {shown['most_loss']:.2%}"
        )
    return overall


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each table and the medians over all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sampler", choices=SAMPLERS, default="tpe")
    parser.add_argument("--efforts", nargs="*", choices=EFFORTS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    made: dict[str, Any] = {"command": f"search_replay.py {' '.join(arguments or sys.argv[1:])}"}
    if given.efforts:
        ends = [ended(path, given.seeds, given.efforts) for path in given.tables]
        made |= {"efforts": print_ends(ends, given.efforts), "tables": list(map(asdict, ends))}
        keep(given.out, made)
        return
    # Forked: loky would copy the classes of this script, locks and all, to its processes.
    rows: list[Replay] = joblib.Parallel(n_jobs=given.jobs, backend="multiprocessing")(
        joblib.delayed(replay)(path, given.seeds, given.trials, given.sampler)
        for path in given.tables
    )
    print(
        f"{'median trials to 2 % of the best':36} {'configs':>8}", *(f"{mode:>9}" for mode in MODES)
    )
    for row in rows:
        print(
            f"{row.problem:36} {row.configs:8}",
            *(f"{median(row.trials[mode]):9g}" for mode in MODES),
        )
    pooled = {mode: median(count for row in rows for count in row.trials[mode]) for mode in MODES}
    print(f"{'all':36} {'':8}", *(f"{pooled[mode]:9g}" for mode in MODES))
    keep(given.out, {**made, "median": pooled, "tables": list(map(asdict, rows))})


def keep(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
