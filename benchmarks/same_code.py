"""Keep the results that an edit of kernels leaves valid: their machine code is the same.

    python benchmarks/same_code.py OLD [RESULT...] [--entries CACHE_FILE...]

OLD: a folder that holds the package as it was, as `pip install --no-deps --target` makes it. The
fastest configuration of each row of the results of gemm_suite.py is compiled for the results' GPU
from both, with the triton installed, which must be the one they were measured with; no GPU is
needed. Rows of equal code and launches stay and tell since when; the others go, to be measured
again. --entries: entries of cache files likewise, which are then found by the kernel as it is.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

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


def main() -> None:
    if sys.argv[1:] == [CODES]:
        sources = {name: kernels.source_hash(name) for name in FAMILIES}
        found = {"kernels": kernels.__file__, "sources": sources}
        print(json.dumps({**found, "codes": codes(json.load(sys.stdin))}))
        return
    from gemm_suite import summary  # not by the old package, whose parts may have other names

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="folder of the package as it was")
    parser.add_argument("results", type=results_file, nargs="*")
    parser.add_argument("--entries", type=results_file, nargs="+", default=[])
    options = parser.parse_args()
    old = str(options.old.absolute())
    of_old = sources_of(old)
    for path in options.entries:
        entries, problem = read_entries(path)
        if problem:
            raise SystemExit(f"cannot read {path}: {problem}")
        left = valid(entries, old, of_old)
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
        for name in {row["config"]["kernel"] for row in rows}:
            if made["sources"][name] != of_old.get(name):
                raise SystemExit(f"{options.old} must hold the {name} kernels that made {path}")
        tasks = [(row["config"], row["problem"], made["gpu"]) for row in rows]
        before, after = of_package(old, tasks)["codes"], of_package("", tasks)["codes"]
        kept = [row for row, one, two in zip(rows, before, after, strict=True) if one == two]
        for row in kept:
            source = made["sources"][row["config"]["kernel"]]
            row.setdefault("since", {"date": made["date"], "source": source})
        made["sources"] |= {name: kernels.source_hash(name) for name in made["sources"]}
        write(path, {**made, **summary(kept), "rows": kept})
        print(path, f"{len(kept)} of {len(rows)} rows kept")


def valid(entries: Sequence[CacheEntry], old: str, of_old: Mapping[str, str]) -> list[CacheEntry]:
    """The entries without those whose code is another, by the source of their kernel as it is.

    Torch's, and those of other kernels than the old ones or of another triton, stay as they are.
    """
    version = ".".join(versions()["triton"].split(".")[:2])
    edited = [
        entry
        for entry in entries
        if entry.config != TORCH
        and entry.key.triton == version
        and entry.key.source == of_old.get(entry.config.kernel)
    ]
    tasks = [(entry.config.to_dict(), str(entry.key.problem), entry.gpu) for entry in edited]
    before, after = of_package(old, tasks)["codes"], of_package("", tasks)["codes"]
    left = {id(entry): entry for entry in entries}
    for entry, one, two in zip(edited, before, after, strict=True):
        source = kernels.source_hash(entry.config.kernel)
        left[id(entry)] = replace(entry, key=replace(entry.key, source=source))
        if one != two:
            print("gone:", entry.key.problem, entry.config)
            del left[id(entry)]
    return [*left.values()]


def sources_of(folder: str) -> dict[str, str]:
    """The hashes of the kernel families in folder."""
    found: dict[str, str] = of_package(folder, [])["sources"]
    return found


def of_package(folder: str, tasks: list[tuple[dict[str, Any], str, str]]) -> dict[str, Any]:
    """The codes of tasks by the package in folder, or by the one installed; and its sources."""
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(
        [sys.executable, __file__, CODES],
        input=json.dumps(tasks), stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path, "TRITON_DISABLE_LINE_INFO": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    # no package, or a checkout, whose kernels lie elsewhere: those installed would answer
    if folder and not Path(found["kernels"]).is_relative_to(Path(folder, "autoswizzle")):
        raise SystemExit(f"{folder} must hold the package's kernels, got {found['kernels']}")
    return found


def codes(tasks: list[tuple[dict[str, Any], str, str]]) -> list[str]:
    """A digest of each task's machine code and of what its launch asks for."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(code, tasks))


def code(task: tuple[dict[str, Any], str, str]) -> str:
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
