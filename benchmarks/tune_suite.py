"""`autoswizzle tune` on the suite: how long it takes, on one GPU or all, and how well it repeats.

    python benchmarks/tune_suite.py wall [--gpus 0] [--part 0/1] [--out FILE]
    python benchmarks/tune_suite.py winners [--gpus 0] [--count 20] [--out FILE]

wall: tunes the bf16 nt suite from scratch with the standard effort, or of part I/N every N-th
problem from the I-th; nothing is compiled before. Writes the wall time, the time spent compiling
and measuring, and every verdict. winners: tunes problems
three times from scratch, then times the three winners of each in turns, in one run.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from record import folder_of, stamp, write
from suite import suite

from autoswizzle.cache.store import shared_store
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.hardware import detect
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem
from autoswizzle.results import TuneReport
from autoswizzle.search.bench import Racing
from autoswizzle.search.effort import EFFORTS
from autoswizzle.settings import settings
from autoswizzle.tuning import tune

REPEATS = 3
RACE_MS = 200.0


def fresh(problems: Sequence[GemmProblem], gpus: Sequence[int]) -> tuple[TuneReport, float]:
    """The report of tuning problems into an empty cache, and the seconds it took."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["AUTOSWIZZLE_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        for singleton in (settings, shared_store, dispatcher):
            singleton.cache_clear()
        began = time.monotonic()
        report = tune(problems, devices=gpus, progress=False, force=True)
        return report, time.monotonic() - began


def wall(options: argparse.Namespace, gpus: Sequence[int]) -> dict[str, Any]:
    part, parts = map(int, options.part.split("/"))
    problems = suite("bf16", "nt")[part::parts]
    report, seconds = fresh(problems, gpus)
    results = report.results
    ratios = [item.entry.ratio or 1.0 for item in results if item.entry is not None]
    found = {
        "gpus": list(gpus),
        "part": options.part,
        "problems": len(problems),
        "failed": [str(item.problem) for item in results if item.error is not None],
        "seconds": round(seconds, 1),
        "compile_s": round(sum(item.compile_s for item in results), 1),
        "measure_s": round(sum(item.measure_s for item in results), 1),
        "geomean": geometric_mean(ratios),
        "won": sum(ratio > 1 for ratio in ratios),
    }
    print(found, flush=True)
    return {**found, "results": [item.to_dict() for item in results]}


def winners(options: argparse.Namespace, gpus: Sequence[int]) -> dict[str, Any]:
    everything = suite("bf16", "nt")
    problems = everything[:: max(1, len(everything) // options.count)][: options.count]
    chosen: dict[GemmProblem, list[GemmConfig]] = {problem: [] for problem in problems}
    for _ in range(REPEATS):
        report, seconds = fresh(problems, gpus)
        print(f"tuned {len(problems)} problems in {seconds:.0f} s", flush=True)
        for item in report.results:
            if item.entry is not None:
                chosen[item.problem].append(item.entry.config)
    rows = []
    with Laboratory(detect(gpus[0]), gpus[0], EFFORTS["standard"], None) as laboratory:
        for problem, configs in chosen.items():
            distinct = tuple(dict.fromkeys(configs))
            times = dict.fromkeys(distinct, 1.0)
            if len(distinct) > 1:
                for config in distinct:
                    if config != TORCH:
                        laboratory.compilers((config, problem))
                race = laboratory.bench(Racing(problem, distinct, RACE_MS, 7))
                times = {item.config: item.time_us for item in race.measurements}
            apart = max(times.values()) / min(times.values()) - 1
            rows.append({
                "problem": str(problem), "winners": [config.to_dict() for config in configs],
                "times_us": [times[config] for config in configs], "apart": apart,
            })  # fmt: skip
            print(f"{problem!s:30} {len(distinct)} distinct, {apart:.1%} apart", flush=True)
    print(f"most apart: {max(row['apart'] for row in rows):.1%}")
    return {"repeats": REPEATS, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("wall", "winners"))
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpus = [int(number) for number in options.gpus.split(",")]
    gpu = detect(gpus[0])
    found = {"wall": wall, "winners": winners}[options.what](options, gpus)
    name = f"tune-{options.what}-{len(gpus)}gpu.json"
    write(options.out or folder_of(gpu) / name, {**stamp(gpu), **found})


if __name__ == "__main__":
    main()
