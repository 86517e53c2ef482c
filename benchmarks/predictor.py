"""How right and how fast the cache model is.

    python benchmarks/predictor.py [--traces N] [--counters FILE ...] [--calibration FILE]
        [--fit] [--out FILE]

Checks the closed form against the plain replay on random work, times both side by side, times the
ranking, and compares predicted DRAM reads with hardware counters: file by file, and over all of
them. No GPU is needed. Counter files are those of tests/data and any
benchmarks/results/h200/*counters*.json; a row of the latter holds "problem" (text form), "config"
(GemmConfig.to_dict), "resident" (programs on the GPU) and "measured_dram_read_bytes".
fitting_counters.json is what the model's coefficients were fitted to: its errors stand apart.
--calibration: a result of benchmarks/calibration.py, by which the model predicts once more.
--fit: print the coefficients that fit best, in place of everything else.
"""

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from calibration import stranger
from rich.console import Console
from rich.table import Table

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import MIB, Gpu, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator import l2, work
from autoswizzle.simulator.l2 import measured_traffic
from autoswizzle.simulator.lru import replay, traffic, traffic_of
from autoswizzle.simulator.random_work import random_capacity, random_launch, random_waves
from autoswizzle.simulator.ranking import rank
from autoswizzle.simulator.work import Launch
from autoswizzle.space import candidates

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FITTING = RESULTS / "h200" / "fitting_counters.json"
H200 = find_gpu("H200")
ARTICLE = Launch(8192, 8192, 8192, 128, 128, 32, 2, "grouped", 8, 168)
console = Console(width=110)


def equality(traces: int) -> dict[str, Any]:
    """Closed form against replay on random launches and on random programs."""
    draw = random.Random(20261130)
    different = 0
    started = time.process_time()
    for trace in range(traces):
        if trace % 2:
            waves, operands = random_waves(draw)
            capacity = random_capacity(draw, operands)
            found = traffic_of(waves, operands, capacity)
        else:
            launch = random_launch(draw)
            waves, operands = list(launch.waves()), launch.operands()
            capacity = random_capacity(draw, operands)
            found = traffic(launch, capacity)
        different += found != replay(waves, operands, capacity)
    seconds = time.process_time() - started
    console.print(f"closed form = replay on {traces} random traces: {different} differ")
    return {"traces": traces, "different": different, "seconds": round(seconds, 1)}


def least_seconds(call: Callable[[], object], repeats: int) -> float:
    """The least of some times, of one core's work: other processes must not count."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def speed() -> list[dict[str, Any]]:
    """Replay and closed form side by side, 8192 x 8192 in tiles 128x128x32, K as stated.

    first: in a process that has not run it. anew: another order's analysis each time. kept: another
    K, k step or capacity of an analysed order, as a ranking or a sweep asks.
    """
    rows = []
    first = least_seconds(lambda: traffic(ARTICLE, 64 * MIB), 1)
    for k in (1024, 8192, 65536):
        launch = replace(ARTICLE, k=k)

        def anew(launch: Launch = launch) -> None:
            work._launch_reuse.cache_clear()
            traffic(launch, 64 * MIB)

        operands = launch.operands()
        replayed = least_seconds(lambda: replay(launch.waves(), operands, 64 * MIB), 2)  # noqa: B023
        kept = least_seconds(lambda: traffic(launch, 64 * MIB), 50)  # noqa: B023
        rows.append(
            {
                "k": k,
                "replay_s": replayed,
                "first_call_s": first,
                "anew_s": least_seconds(anew, 20),
                "kept_s": kept,
                "times_faster": replayed / kept,
            }
        )
    table = Table("K", "replay s", "first call s", "anew ms", "kept ms", "times faster (kept)")
    for row in rows:
        table.add_row(
            str(row["k"]),
            f"{row['replay_s']:.2f}",
            f"{row['first_call_s']:.3f}",
            f"{1e3 * row['anew_s']:.2f}",
            f"{1e3 * row['kept_s']:.3f}",
            f"{row['times_faster']:,.0f}",
        )
    console.print(table)
    return rows


def ranking(count: int = 5000) -> list[dict[str, Any]]:
    """Seconds to rank random candidates of a problem, nothing kept from before."""
    rows: list[dict[str, Any]] = []
    for text in ("4096x4096x4096:bf16:nt", "8192x8192x8192:fp16:nn", "128x6144x4096:bf16:nt"):
        problem = GemmProblem.parse(text)
        everything = list(candidates(problem, H200))
        some = random.Random(1).sample(everything, count)
        work._launch_reuse.cache_clear()
        seconds = least_seconds(lambda: rank(problem, H200, 20, some), 1)  # noqa: B023
        all_seconds = least_seconds(lambda: rank(problem, H200, 20, everything), 1)  # noqa: B023
        rows.append(
            {
                "problem": text,
                "candidates": count,
                "seconds": seconds,
                "all_candidates": len(everything),
                "all_seconds": all_seconds,
            }
        )
    table = Table("problem", f"top 20 of {count}, s", "of all", "s")
    for row in rows:
        table.add_row(
            row["problem"],
            f"{row['seconds']:.2f}",
            str(row["all_candidates"]),
            f"{row['all_seconds']:.2f}",
        )
    console.print(table)
    return rows


@dataclass(frozen=True)
class Point:
    """One counted launch: its name, the launch and the bytes DRAM delivered."""

    name: str
    launch: Launch
    out_itemsize: int
    read_bytes: int

    @property
    def family(self) -> str:
        """Tile, stages and launch style."""
        at = self.launch
        style = "persistent" if at.persistent else "a program a tile"
        tile = f"{at.block_m}x{at.block_n}x{at.block_k}"
        return f"{tile}, {at.stages} stages, {at.concurrency} programs, {style}"


def points(path: Path) -> list[Point]:
    """The rows of a counter file of any of the three forms (module docstring)."""
    data = json.loads(path.read_text())
    return [_point(data, row) for row in data["rows"]]


def _point(data: dict[str, Any], row: dict[str, Any]) -> Point:
    read = row["measured_dram_read_bytes"]
    if "config" in row:
        problem = GemmProblem.parse(row["problem"])
        config = GemmConfig.from_dict(row["config"])
        launch = Launch(
            problem.m, problem.n, problem.k, config.block_m, config.block_n, config.block_k,
            problem.itemsize, config.swizzle, config.group_size, row["resident"], problem.batch,
            config.split_k, config.num_stages, config.persistent,
        )  # fmt: skip
        return Point(f"{problem} {config}", launch, problem.out_itemsize, read)
    tile = data["tile"]
    if "order" in row:
        extents = data["problem"]["M"], data["problem"]["N"], data["problem"]["K"]
        order, _, group = row["order"].partition(" g=")
        order, group_size = {"col": "column"}.get(order, order), int(group or 8)
        name = f"{row['launch']} {row['order']}"
    else:
        extents, order, group_size = (row["M"], row["N"], row["K"]), "grouped", row["group_size"]
        name = f"{'x'.join(map(str, extents))} group {group_size}"
    launch = Launch(
        *extents, tile["block_m"], tile["block_n"], tile["block_k"], 2, order, group_size,
        data["resident_programs"], stages=tile["num_stages"],
        persistent=row.get("launch") != "one program per tile",
    )  # fmt: skip
    return Point(name, launch, 2, read)


def variants(gpu: Gpu, measured: Gpu | None) -> dict[str, Callable[[Point], float]]:
    """The models, and each choice of the L2 as it is undone on its own.

    measured: the same GPU as if the catalogue had no entry for it, by its calibration.
    """

    def as_it_is(point: Point, gpu: Gpu = gpu, stores: float = 1.0) -> float:
        size = point.out_itemsize * stores
        return measured_traffic(point.launch, gpu, size).miss_bytes

    def changed(point: Point, **fields: Any) -> float:  # noqa: ANN401 - of any of its types
        return as_it_is(replace(point, launch=replace(point.launch, **fields)))

    def hard_edge(point: Point) -> float:
        edge, l2.SOFT_EDGE = l2.SOFT_EDGE, (1 - 1e-9, 1 + 1e-9)
        try:
            return as_it_is(point)
        finally:
            l2.SOFT_EDGE = edge

    effective, reported = gpu.l2_effective_bytes, gpu.l2_bytes
    found: dict[str, Callable[[Point], float]] = {"l2": as_it_is}
    if measured is not None:
        found["l2, calibrated"] = lambda point: as_it_is(point, measured)
    return found | {
        "l2, reported capacity": lambda point: as_it_is(
            point, replace(gpu, l2_effective_bytes=reported)
        ),
        "l2, one block an SM": lambda point: changed(point, concurrency=gpu.num_sms),
        "l2, stores of C not kept": lambda point: as_it_is(point, stores=0.0),
        "l2, stores of C in full": lambda point: as_it_is(point, stores=reported / effective),
        "l2, hard edge": hard_edge,
        "l2, in lockstep": lambda point: changed(point, stages=1),
        "lru": lambda point: traffic(point.launch, effective).miss_bytes,
        "lru, reported capacity": lambda point: traffic(point.launch, reported).miss_bytes,
    }


def summary(names: Sequence[str], ratios: Sequence[float]) -> dict[str, Any]:
    """Errors of predicted over measured reads."""
    error = np.abs(np.array(ratios) - 1)
    worst = int(error.argmax())
    return {
        "rows": len(error),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
        "worst": float(error[worst]),
        "worst_row": names[worst],
    }


def show(title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("", "rows", "median", "90 %", "worst", "worst row", title=title)
    for name, errors in found.items():
        shares = (f"{errors[key]:.1%}" for key in ("median", "p90", "worst"))
        table.add_row(name, str(errors["rows"]), *shares, errors["worst_row"])
    console.print(table)


def counters(paths: Iterable[Path], gpu: Gpu, measured: Gpu | None) -> dict[str, Any]:
    """Predicted over measured DRAM reads: of every file by model, of all reported rows together,
    and of those by family and by file.
    """
    files, reported = [], []
    for path in paths:
        rows = points(path)
        names = [point.name for point in rows]
        models: dict[str, Any] = {}
        for name, predict in variants(gpu, measured).items():
            ratios = [predict(point) / point.read_bytes for point in rows]
            models[name] = summary(names, ratios) | {"ratios": [round(x, 4) for x in ratios]}
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        show(str(shown), models)
        files.append({"file": str(shown), "rows": names, "models": models})
        if path.name != FITTING.name:
            reported += [
                (str(shown), point, {name: found["ratios"][row] for name, found in models.items()})
                for row, point in enumerate(rows)
            ]
    if not reported:
        return {"files": files}
    every = [point.name for _, point, _ in reported]
    overall = {
        name: summary(every, [ratios[name] for _, _, ratios in reported]) for name in reported[0][2]
    }
    show("all reported rows, by model", overall)
    groups: dict[str, list[tuple[str, float]]] = {}
    for file, point, by_model in reported:
        for group in (file, point.family):
            groups.setdefault(group, []).append((point.name, by_model["l2"]))
    by_group = {group: summary(*zip(*rows, strict=True)) for group, rows in groups.items()}
    show("model l2, by file and family", by_group)
    return {"files": files, "reported": overall, "by_group": by_group}


def fit(gpu: Gpu) -> None:
    """Print the coefficients of the drift that fit the fitting rows best, and the error left."""
    rows = points(FITTING)

    def error(drift: float, stagger: float) -> float:
        l2.DRIFT, l2.STAGGER = drift, stagger
        ratios = [
            measured_traffic(point.launch, gpu, point.out_itemsize).miss_bytes / point.read_bytes
            for point in rows
        ]
        return float(np.abs(np.log(ratios)).mean())

    kept = l2.DRIFT, l2.STAGGER
    steps = np.geomspace(0.8, 1.25, 9)
    drift, stagger = kept
    drift = min((float(drift * step) for step in steps), key=lambda x: error(x, stagger))
    stagger = min((float(stagger * step) for step in steps), key=lambda x: error(drift, x))
    console.print(f"now {kept}: mean |log error| {error(*kept):.4f}")
    console.print(f"best {drift:.4f}, {stagger:.3f}: {error(drift, stagger):.4f}")


def counter_files() -> list[Path]:
    recorded = sorted((ROOT / "tests" / "data").glob("*counters*.json"))
    return recorded + sorted((RESULTS / "h200").glob("*counters*.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=int, default=20_000)
    parser.add_argument("--counters", type=Path, nargs="*", default=counter_files())
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu" / "predictor.json")
    parser.add_argument("--calibration", type=Path)
    options = parser.parse_args()
    measured = None if options.calibration is None else stranger(options.calibration)
    if options.fit:
        fit(H200)
        return
    result = {
        "command": "python " + " ".join(["benchmarks/predictor.py", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "machine": platform.machine(),
        "speed": speed(),
        "ranking": ranking(),
        "equality": equality(options.traces),
        "calibrated": measured and f"{measured.name} ({measured.source})",
        "counters": counters(options.counters, H200, measured),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
