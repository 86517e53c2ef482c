"""`autoswizzle tune` on the suite: how long it takes, on one GPU or all, and how well it repeats.

    python benchmarks/tune_suite.py wall [--gpus 0] [--part 0/1] [--out FILE]
    python benchmarks/tune_suite.py winners [--gpus 0] [--count 20] [--out FILE]

wall: tunes the bf16 nt suite from scratch with the standard effort, or of part I/N every N-th
problem from the I-th; nothing is compiled before. Writes the wall time, the time spent compiling
and measuring, and the final of each problem. winners: tunes problems three times from scratch,
then times the three winners of each in turns, in one run; rounds that FILE holds count.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from record import fastest_of, folder_of, stamp, write
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
from autoswizzle.search.storage import file_url
from autoswizzle.search.studies import Study, read_studies
from autoswizzle.settings import settings
from autoswizzle.tuning import STUDIES, tune

REPEATS = 3
RACE_MS = 300.0


def fresh(
    problems: Sequence[GemmProblem], gpus: Sequence[int], entries: Path | None = None
) -> tuple[TuneReport, float, list[Study]]:
    """The report of tuning problems into an empty cache, the seconds it took, and its studies."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["AUTOSWIZZLE_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        for singleton in (settings, shared_store, dispatcher):
            singleton.cache_clear()
        began = time.monotonic()
        report = tune(
            problems, devices=gpus, progress=False, force=True, from_scratch=True, out=entries
        )
        seconds = time.monotonic() - began
        return report, seconds, read_studies(file_url(Path(folder) / STUDIES))


def wall(options: argparse.Namespace, gpus: Sequence[int]) -> dict[str, Any]:
    part, parts = map(int, options.part.split("/"))
    problems = suite("bf16", "nt")[part::parts]
    report, seconds, studies = fresh(problems, gpus, options.entries)
    results = report.results
    finals = {str(study.problem): study.final for study in studies if study.final is not None}
    rows = []
    for item in results:
        row = {name: value for name, value in item.to_dict().items() if name != "entry"}
        final = finals.get(row["problem"])
        rows.append(row if final is None else row | fastest_of(final))
    found = {
        "gpus": list(gpus),
        "part": options.part,
        "problems": len(problems),
        "failed": sum(item.error is not None for item in results),
        "seconds": round(seconds, 1),
        "compile_s": round(sum(item.compile_s for item in results), 1),
        "measure_s": round(sum(item.measure_s for item in results), 1),
        "trials": sum(item.measured + item.infeasible for item in results),
        "geomean_of_verdicts": geometric_mean(
            item.entry.ratio or 1.0 for item in results if item.entry is not None
        ),
        "won": sum(item.entry is not None and item.entry.config != TORCH for item in results),
    }
    print(found, flush=True)
    return {**found, "rows": rows}


def winners(options: argparse.Namespace, gpus: Sequence[int]) -> dict[str, Any]:
    everything = suite("bf16", "nt")
    problems = everything[:: max(1, len(everything) // options.count)][: options.count]
    rounds: list[dict[str, Any]] = []  # of each: the winner of every problem, by its text form
    if options.out.exists():
        rounds = json.loads(options.out.read_text())["rounds"]
    while len(rounds) < REPEATS:
        report, seconds, _ = fresh(problems, gpus)
        print(f"tuned {len(problems)} problems in {seconds:.0f} s", flush=True)
        entries = [item.entry for item in report.results if item.entry is not None]
        rounds.append({str(entry.key.problem): entry.config.to_dict() for entry in entries})
        write(options.out, {"rounds": rounds})
    rows: list[dict[str, Any]] = []
    with closing(Laboratory(detect(gpus[0]), gpus[0], EFFORTS["standard"], None)) as laboratory:
        for problem in problems:
            found = [each[str(problem)] for each in rounds if str(problem) in each]
            rows.append(compared(problem, list(map(GemmConfig.from_dict, found)), laboratory))
            print(f"{problem!s:30} {rows[-1]['apart']:.1%} apart", flush=True)
    print(f"most apart: {max(row['apart'] for row in rows):.1%}")
    return {"rounds": rounds, "rows": rows}


def compared(
    problem: GemmProblem, winners: Sequence[GemmConfig], laboratory: Laboratory
) -> dict[str, Any]:
    """How far the winners of a problem are apart, timed in turns in one race."""
    distinct = tuple(dict.fromkeys(winners))
    times = dict.fromkeys(distinct, 1.0)
    if len(distinct) > 1:
        laboratory.compilers.complete([(item, problem) for item in distinct if item != TORCH])
        race = laboratory.bench(Racing(problem, distinct, RACE_MS, 7))
        times = {item.config: item.time_us for item in race.measurements}
    return {
        "problem": str(problem),
        "winners": [config.to_dict() for config in winners],
        "times_us": [times[config] for config in winners],
        "apart": max(times.values()) / min(times.values()) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("wall", "winners"))
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--entries", type=Path, help="a cache file that gets wall's verdicts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpus = [int(number) for number in options.gpus.split(",")]
    gpu = detect(gpus[0])
    name = f"tune-{options.what}-{len(gpus)}gpu.json"
    options.out = options.out or folder_of(gpu) / name
    found = {"wall": wall, "winners": winners}[options.what](options, gpus)
    write(options.out, {**stamp(gpu), **found})


if __name__ == "__main__":
    main()
