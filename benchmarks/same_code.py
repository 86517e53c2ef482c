"""Keep the results that an edit of kernels leaves valid: their machine code is the same.

    python benchmarks/same_code.py OLD [RESULT...] [--entries CACHE_FILE...]

OLD: a folder that holds the package as it was, as `pip install --no-deps --target` makes it. The
fastest configuration of each row of the results of gemm_suite.py is compiled for the results' GPU
from both, with the triton installed, which must be the one they were measured with; no GPU is
needed. Rows of equal code and launches stay and tell since when; the others go, to be measured
again. --entries: entries of cache files likewise, which are then found by the kernel as it is.
Only what was measured with the kernels of OLD is judged by them: rows of others end the program,
entries of others, which don't hold, stay so.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from record import add_entries, results_file, write

from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.index import read_entries
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import Gpu, find_gpu
from autoswizzle.kernels.offline import call_for, compiled
from autoswizzle.problem import GemmProblem
from autoswizzle.space import FAMILIES, tail
from autoswizzle.verdicts import versions

CODES = "--codes"  # this program, run for one of the two packages

Task = tuple[dict[str, Any], str, str]  # configuration, problem and GPU


class Package(NamedTuple):
    """A package's kernel sources, by family, and the codes of the tasks it was given."""

    sources: dict[str, str]
    codes: list[str]


def main() -> None:
    if sys.argv[1:] == [CODES]:
        sources = {name: kernels.source_hash(name) for name in FAMILIES}
        found = {
            "kernels": kernels.__file__,
            "sources": sources,
            "codes": codes(json.load(sys.stdin)),
        }
        print(json.dumps(found))
        return
    from gemm_suite import summary  # not by the old package, whose parts may have other names

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="folder of the package as it was")
    parser.add_argument("results", type=results_file, nargs="*")
    parser.add_argument("--entries", type=results_file, nargs="+", default=[])
    options = parser.parse_args()
    if not options.results and not options.entries:
        parser.error("results or --entries must name a file, got none")
    old = str(options.old.absolute())
    for path in options.entries:
        entries, problem = read_entries(path)
        if problem:
            raise SystemExit(f"cannot read {path}: {problem}")
        left = valid(entries, old)
        renewed = path.with_suffix(".new")
        renewed.unlink(missing_ok=True)
        add_entries(renewed, left)
        renewed.replace(path)
        print(path, f"{len(left)} of {len(entries)} entries kept")
    for path in options.results:
        made = json.loads(path.read_text())
        if made["versions"]["triton"] != versions()["triton"]:
            raise SystemExit(
                f"triton must be {made['versions']['triton']}, got {versions()['triton']}"
            )
        rows = [row for row in made["rows"] if "error" not in row]
        kept = same(rows, made, old)
        made["sources"] |= {name: kernels.source_hash(name) for name in made["sources"]}
        facts = {name: made[name] for name in made if name not in summary(rows)}
        write(path, {**facts, **summary(kept), "rows": kept})
        print(path, f"{len(kept)} of {len(rows)} rows kept")


def same(rows: list[dict[str, Any]], made: dict[str, Any], old: str) -> list[dict[str, Any]]:
    """The rows of results that hold; those of edited kernels tell since when."""
    sources = made["sources"]
    names = {row["config"]["kernel"] for row in rows}
    edited = {name for name in names if sources[name] != kernels.source_hash(name)}
    doubtful = [row for row in rows if row["config"]["kernel"] in edited]
    before, after = both(old, [(row["config"], row["problem"], made["gpu"]) for row in doubtful])
    for name in edited:
        if sources[name] != before.sources.get(name):
            raise SystemExit(f"{old} must hold the {name} kernel of {made['date']}, got another")
    equal = (one == two for one, two in zip(before.codes, after.codes, strict=True))
    found = []
    for row in rows:
        if row["config"]["kernel"] not in edited:
            found.append(row)
        elif next(equal):
            since = {"date": made["date"], "source": sources[row["config"]["kernel"]]}
            found.append({**row, "since": row.get("since", since)})
    return found


def valid(entries: Sequence[CacheEntry], old: str) -> list[CacheEntry]:
    """The entries without those that hold no longer; those that do, by their kernel as it is."""
    sources = {entry.config: source_of(entry) for entry in entries}
    edited = [entry for entry in entries if entry.key.source != sources[entry.config]]
    for entry in edited:
        if not versions()["triton"].startswith(f"{entry.key.triton}."):
            raise SystemExit(f"triton must be {entry.key.triton}, got {versions()['triton']}")
    before, after = both(old, [(e.config.to_dict(), str(e.key.problem), e.gpu) for e in edited])
    judged: dict[str, CacheEntry | None] = {}  # by digest, of those of the old kernels
    for entry, one, two in zip(edited, before.codes, after.codes, strict=True):
        if entry.key.source != before.sources.get(entry.config.kernel):
            continue
        key = replace(entry.key, source=sources[entry.config])
        judged[entry.key.digest] = replace(entry, key=key) if one == two else None
        if one != two:
            print("gone:", entry.key.problem, entry.config)
    found = (judged.get(entry.key.digest, entry) for entry in entries)
    return [entry for entry in found if entry is not None]


def source_of(entry: CacheEntry) -> str:
    return "" if entry.config == TORCH else kernels.source_hash(entry.config.kernel)


def both(old: str, tasks: list[Task]) -> tuple[Package, Package]:
    """What the package in old and the one installed say of tasks."""
    return of_package(old, tasks), of_package("", tasks)


def of_package(folder: str, tasks: list[Task]) -> Package:
    """What the package in folder says of tasks, or the one installed."""
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(
        [sys.executable, __file__, CODES],
        input=json.dumps(tasks), stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path, "TRITON_DISABLE_LINE_INFO": "1"},
    )  # fmt: skip
    found = json.loads(ran.stdout.splitlines()[-1])
    # no package, or a checkout, whose kernels lie elsewhere: those installed would answer
    if folder and not Path(found["kernels"]).is_relative_to(Path(folder, "autoswizzle")):
        raise SystemExit(f"{folder} must hold the package's kernels, got {found['kernels']}")
    return Package(found["sources"], found["codes"])


def codes(tasks: list[Task]) -> list[str]:
    """A digest of each task's machine code and of what its launch asks for."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(code, tasks))


def code(task: Task) -> str:
    """The digest of one task: configuration, problem and GPU."""
    config, problem, gpu = (
        GemmConfig.from_dict(task[0]), GemmProblem.parse(task[1]), find_gpu(task[2])
    )  # fmt: skip
    cubin: bytes = compiled(config, problem, gpu).asm["cubin"]
    return hashlib.sha256(cubin + repr(launch(config, problem, gpu)).encode()).hexdigest()


def launch(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> list[Any]:
    """What the host decides: the grid, the compiler's options, memory, numbers for the kernel."""
    call = call_for(config, problem).overlapping(gpu.capability)
    numbers = {name: value for name, value in call.args.items() if isinstance(value, int)}
    grid = call.tiles, call.persistent, call.multiple, call.blocks
    shared = tail(config, problem, gpu.num_sms) if config.stream_k else None
    return [grid, shared, numbers, call.options, call.scratch]


if __name__ == "__main__":
    main()
