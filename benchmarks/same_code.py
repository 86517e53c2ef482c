"""Keep the results that an edit of kernels leaves valid: their machine code is the same.

    python benchmarks/same_code.py OLD RESULT...

OLD: a folder that holds the package as it was, as `pip install --no-deps --target` makes it. The
fastest configuration of each row of the results of gemm_suite.py is compiled for the results' GPU
from both, with the triton installed, which must be the one they were measured with; no GPU is
needed. Rows of equal code and launches stay and tell since when; the others go, to be measured
again.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from record import results_file, write

from autoswizzle import kernels
from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Gpu, find_gpu
from autoswizzle.kernels.offline import call_for, compiled
from autoswizzle.problem import GemmProblem
from autoswizzle.space import tail
from autoswizzle.verdicts import versions

CODES = "--codes"  # this program, run for one of the two packages


def main() -> None:
    if sys.argv[1:] == [CODES]:
        found = {"kernels": kernels.__file__, "codes": codes(json.load(sys.stdin))}
        print(json.dumps(found))
        return
    from gemm_suite import summary  # not by the old package, whose parts may have other names

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="folder of the package as it was")
    parser.add_argument("results", type=results_file, nargs="+")
    options = parser.parse_args()
    for path in options.results:
        made = json.loads(path.read_text())
        if made["versions"]["triton"] != versions()["triton"]:
            raise SystemExit(
                f"triton must be {made['versions']['triton']}, got {versions()['triton']}"
            )
        rows = [row for row in made["rows"] if "error" not in row]
        tasks = [(row["config"], row["problem"], made["gpu"]) for row in rows]
        before, after = of_package(str(options.old.absolute()), tasks), of_package("", tasks)
        kept = [row for row, one, two in zip(rows, before, after, strict=True) if one == two]
        for row in kept:
            source = made["sources"][row["config"]["kernel"]]
            row.setdefault("since", {"date": made["date"], "source": source})
        made["sources"] |= {name: kernels.source_hash(name) for name in made["sources"]}
        write(path, {**made, **summary(kept), "rows": kept})
        print(path, f"{len(kept)} of {len(rows)} rows kept")


def of_package(folder: str, tasks: list[tuple[dict[str, Any], str, str]]) -> list[str]:
    """The codes of tasks by the package in folder, or by the one installed."""
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
    made: list[str] = found["codes"]
    return made


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
