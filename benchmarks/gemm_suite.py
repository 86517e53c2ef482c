"""The suite on this GPU: our best kernel and the dispatched result against torch.matmul.

    python benchmarks/gemm_suite.py --dtype bf16 --layout nt [--large | --training]

Each problem is searched (the shortlist's seeds, torch, the default), then the finalists and torch
run interleaved on fresh data, and the fastest of ours against torch once more: that ratio and its
95 % interval are the result, torch's decision aside. own: the same two in turns so long that each
runs at the clock its power leaves it (search.timing), by the final's race, where it held one, or by
another. Sustained timing. Resumable: results in the file are kept, unless --redo is given or their
kernel has changed; what failed is tried again. --known: results whose winners for the same extents
and layout are tried first. --entries: a cache file that gets the verdicts.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from record import Winners, add_entries, fastest_of, folder_of, results_file, stamp, write
from suite import large, suite, training

from autoswizzle.calibration import calibrated
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import CandidateError, TuneError
from autoswizzle.hardware import detect
from autoswizzle.kernels import source_hash
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem
from autoswizzle.search.bench import Racing
from autoswizzle.search.effort import EFFORTS
from autoswizzle.search.study import SearchResult
from autoswizzle.search.timing import LONG
from autoswizzle.space import FAMILIES
from autoswizzle.verdicts import entry_of

SLOW = 0.97  # ratios below it are counted
OWN = ("ratio", "ratio_low", "ratio_high")
AHEAD = 4  # problems whose seeds are ranked and compiled before their turn


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--large", action="store_true", help="only m, n, k >= 1024")
    which.add_argument("--training", action="store_true", help="a training step's, any layout")
    parser.add_argument("--problems", nargs="*", help="these instead of the suite's")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--finalists", type=int, default=5)
    parser.add_argument("--trials", type=int, default=0, help="beyond the seeds, by the sampler")
    parser.add_argument("--screening-ms", type=float, default=8)
    parser.add_argument("--final-ms", type=float, default=EFFORTS["standard"].final_ms)
    parser.add_argument("--own-ms", type=float, help="of another, longer race at own clocks")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop starting problems")
    parser.add_argument("--known", type=results_file, nargs="*", default=[])
    parser.add_argument("--entries", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--redo", action="store_true")
    options = parser.parse_args()
    gpu = calibrated(detect(0))
    name = f"suite-{options.dtype}-{options.layout}" + ("-large" if options.large else "")
    problems = (large if options.large else suite)(options.dtype, options.layout)
    if options.training:
        name, problems = f"suite-{options.dtype}-training", training(options.dtype)
    problems = list(dict.fromkeys(problems))
    path = (options.out or folder_of(gpu)) / f"{name}.json"
    if options.problems:
        problems = [GemmProblem.parse(text) for text in options.problems]
    sources = {name: source_hash(name) for name in FAMILIES}
    rows = {} if options.redo else kept(path, sources)
    effort = replace(
        EFFORTS["standard"],
        name="suite", trials=options.seeds + 2 + options.trials, seconds=math.inf,
        seeds=options.seeds, screening_ms=options.screening_ms, final_ms=options.final_ms,
        finalists=options.finalists, min_gain=0.0,
    )  # fmt: skip
    began = time.monotonic()
    left = [problem for problem in problems if str(problem) not in rows]
    known = Winners(options.known)
    made = {**stamp(gpu), "sources": sources}
    with closing(Laboratory(gpu, 0, effort, None)) as laboratory, ThreadPoolExecutor(1) as scout:
        for index, problem in enumerate(left):
            if time.monotonic() - began > options.seconds:
                break
            for following in left[index + 1 : index + AHEAD]:
                scout.submit(laboratory.announce, following, known.of(following))
            started = time.monotonic()
            try:
                found = laboratory.search(problem, seeds=known.of(problem))
                row = row_of(problem, found)
                fastest = GemmConfig.from_dict(row["config"])
                if row["own"] is None or options.own_ms is not None:
                    row["own"] = own_clocks(laboratory, problem, fastest, options.own_ms or 0)
                if options.entries is not None:
                    add_entries(options.entries, [entry_of(problem, laboratory, found)])
            except (CandidateError, TuneError) as error:
                row = {"problem": str(problem), "error": str(error)}
            rows[str(problem)] = row
            print(line(row), f"{time.monotonic() - started:.1f} s", flush=True)
            write(path, {**made, **summary(list(rows.values())), "rows": [*rows.values()]})
    print(json.dumps(summary(list(rows.values()))), f"{time.monotonic() - began:.0f} s")


def kept(path: Path, sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The rows of an earlier run, by problem, whose kernel has not changed since."""
    if not path.exists():
        return {}
    made = json.loads(path.read_text())
    return {
        row["problem"]: row
        for row in made["rows"]
        if "own" in row
        and made["sources"].get(row["config"]["kernel"]) == sources[row["config"]["kernel"]]
    }


def row_of(problem: GemmProblem, found: SearchResult) -> dict[str, Any]:
    final = found.final
    if final is None:
        raise TuneError(f"the search of {problem} must have a final")
    return {
        "problem": str(problem),
        **fastest_of(final),
        "tflops": final.confirmed[0].tflops(problem),
        "dispatched": max(1.0, final.ratio) if final.winner == final.fastest else 1.0,
        "own": None if final.own is None else dict(zip(OWN, final.own, strict=True)),
        "spearman": found.spearman,
        "screened": [
            {"config": item.config.to_dict(), "time_us": item.time_us}
            for item in found.measurements
        ],
        "infeasible": [{"config": f.config.to_dict(), "why": f.reason} for f in found.infeasible],
    }


def own_clocks(
    laboratory: Laboratory, problem: GemmProblem, config: GemmConfig, budget_ms: float
) -> dict[str, Any]:
    """The ratio of torch's time to config's, each at its own clock."""
    race = laboratory.bench(Racing(problem, (config, TORCH), budget_ms / 2, 3, LONG))
    return dict(zip(OWN, race.ratio(), strict=True))


def line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['problem']:30s} FAILED {row['error']}"
    config = row["config"]
    told = {key: config[key] for key in config if key not in ("kernel", "persistent", "block_k")}
    shown = " ".join(f"{key[:9]}={value}" for key, value in told.items())
    rho = "-" if row["spearman"] is None else f"{row['spearman']:.2f}"
    ratio = f"{row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    return (
        f"{row['problem']:30s} {ratio} own {row['own']['ratio']:.3f} {row['torch_us']:9.1f} us"
        f" {row['tflops']:5.0f} TF rho {rho} bad {len(row['infeasible'])}"
        f" {config['kernel']} {shown}"
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [row["ratio"] for row in rows if "error" not in row]
    if not ratios:
        return {}
    return {
        "problems": len(ratios),
        "failed": len(rows) - len(ratios),
        "geomean": geometric_mean(ratios),
        "own_geomean": geometric_mean(row["own"]["ratio"] for row in rows if "error" not in row),
        "least": min(ratios),
        "below_0.97": sum(ratio < SLOW for ratio in ratios) / len(ratios),
        "dispatched_geomean": geometric_mean(
            row["dispatched"] for row in rows if "error" not in row
        ),
    }


if __name__ == "__main__":
    main()
