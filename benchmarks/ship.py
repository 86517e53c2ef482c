"""Turn results of gemm_suite.py into a cache file.

    python benchmarks/ship.py [--fastest] RESULT... CACHE_FILE

A problem whose kernel did not beat torch beyond the margin, or is slower at its own clock, becomes
a torch entry. Refuses results whose kernel sources are not those of this tree: their entries would
not hold. --fastest: adds no entry; the file's torch entries that do not tell our fastest kernel get
it, where the results, those of tune_suite.py too, hold the race that made the entry.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from record import add_entries, results_file

from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.index import read_entries
from autoswizzle.cache.key import key_for
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=results_file, nargs="+")
    parser.add_argument("target", type=Path, help="the cache file")
    parser.add_argument("--fastest", action="store_true", help="only complete torch entries")
    options = parser.parse_args()
    if options.fastest:
        entries = completed(options.target, options.results)
        add_entries(options.target, entries)
        print(options.target, len(entries), "entries completed")
        return
    for path in options.results:
        made = json.loads(path.read_text())
        entries = [entry_of(row, made) for row in made["rows"] if "error" not in row]
        print(path, add_entries(options.target, entries), "entries")


def entry_of(row: dict[str, Any], made: dict[str, Any]) -> CacheEntry:
    """The cache entry of one problem's result."""
    fastest = GemmConfig.from_dict(row["config"])
    if made["sources"].get(fastest.kernel) != kernels.source_hash(fastest.kernel):
        raise SystemExit(f"{fastest.kernel} has changed since {made['date']}: measure again")
    won = row["dispatched"] > 1 and row["own"]["ratio_high"] >= 1
    major, minor, *_ = made["versions"]["triton"].split(".")
    source = kernels.source_hash(fastest.kernel) if won else ""
    gpu = find_gpu(made["gpu"])
    return CacheEntry(
        key=key_for(GemmProblem.parse(row["problem"]), gpu, source, (int(major), int(minor))),
        config=fastest if won else TORCH,
        time_us=row["time_us"] if won else row["torch_us"],
        torch_us=row["torch_us"],
        ratio=row["ratio"] if won else 1.0,
        ratio_low=row["ratio_low"] if won else None,
        ratio_high=row["ratio_high"] if won else None,
        method="sustained",
        trials=len(row["screened"]) + len(row["infeasible"]),
        effort="suite",
        date=row.get("since", made)["date"],
        gpu=made["gpu"],
        versions=made["versions"],
        fastest=None if won else fastest,
        fastest_ratio=None if won else row["ratio"],
    )


def completed(target: Path, results: Sequence[Path]) -> list[CacheEntry]:
    """The torch entries of target that the results complete, otherwise as they are."""
    races = {  # told apart by what torch took, to the last bit
        (row["problem"], made["gpu"], row["torch_us"]): row
        for made in (json.loads(path.read_text()) for path in results)
        for row in made["rows"]
        if "config" in row
    }
    entries, problem = read_entries(target)
    if problem:
        raise SystemExit(f"cannot add to {target}: {problem}")
    found = []
    for entry in entries:
        row = races.get((str(entry.key.problem), entry.gpu, entry.torch_us))
        if row is not None and entry.config == TORCH and entry.fastest is None:
            fastest = GemmConfig.from_dict(row["config"])
            found.append(replace(entry, fastest=fastest, fastest_ratio=row["ratio"]))
    return found


if __name__ == "__main__":
    main()
