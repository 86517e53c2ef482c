"""Measured times of random configurations: what the time model and the searches are judged on.

    python benchmarks/time_tables.py [--count 220] [--pool 520] [--fitting] [--out DIR]

A pool of configurations is drawn evenly from all that are legal for one of the problems and fit.
For each of 20 problems of the suite (--fitting: of the four that coefficients may be fitted on),
the first `count` of the pool that are legal for it, compiled ahead in parallel, are timed in a
short steady stream. One file a problem in results/<gpu>/tables, of the form that
benchmarks/fit_time_model.py and benchmarks/search_replay.py read. A second run adds what lacks.
--part 0/2, 1/2: every other problem, with a pool of its own, for two GPUs.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Container, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from record import folder_of, stamp
from suite import FITTING

from autoswizzle.config import GROUPED_SWIZZLES, GemmConfig
from autoswizzle.errors import CandidateError
from autoswizzle.hardware import Gpu, detect
from autoswizzle.kernels.order import SQUARE_SWIZZLES
from autoswizzle.laboratory import Laboratory
from autoswizzle.problem import GemmProblem
from autoswizzle.search.bench import Screening
from autoswizzle.search.effort import EFFORTS
from autoswizzle.simulator.resources import estimate, resident_blocks, why_infeasible
from autoswizzle.space import FAMILIES, branches, why_illegal

SHAPES = (  # of the suite: large to small, every kind of it
    "8192x6144x4096", "5632x5632x5632", "2048x10240x8192", "2048x28672x4096", "8192x4096x4096",
    "1024x28672x4096", "4096x4096x4096", "8192x8192x1024", "1024x8192x8192", "512x28672x4096",
    "16384x1024x1024", "3072x3072x3072", "1024x1024x16384", "3000x3000x3000", "1024x6144x4096",
    "128x28672x4096", "2048x2048x2048", "64x10240x8192", "128x6144x4096", "16x4096x14336",
)  # fmt: skip
MAX_DRAWS = 1_000_000
AHEAD = 2  # problems whose configurations compile before their turn
TIMES = ("time_us", "low_us", "high_us")
KEEP_EVERY = 25  # measurements between writes of the file


def drawn(
    problems: Sequence[GemmProblem],
    gpu: Gpu,
    count: int,
    seed: str,
    *,
    kernels: Container[str] = FAMILIES,
    draws: int = MAX_DRAWS,
) -> list[GemmConfig]:
    """Count configurations, or what `draws` tries find, drawn evenly from all of these kernels that
    are legal and fit for one of the problems.
    """
    draw = random.Random(seed)
    families = {name: values for name, values in branches(problems[0], gpu).items()
                if name in kernels}  # fmt: skip
    if not families:
        return []
    sizes = [math.prod(map(len, tunables.values())) for tunables in families.values()]
    chosen: dict[GemmConfig, None] = {}
    for _ in range(draws):
        if len(chosen) == count:
            break
        (kernel,) = draw.choices(list(families), sizes)
        values = {name: draw.choice(values) for name, values in families[kernel].items()}
        grouped = values["swizzle"] in GROUPED_SWIZZLES
        size = None if grouped else values.pop("group_size", None)
        if size is not None and size != families[kernel]["group_size"][0]:
            continue  # such an order is drawn as often as one group size of a grouped one
        config = GemmConfig(kernel=kernel, **values)
        if fits(config, draw.choice(problems), gpu):
            chosen[config] = None
    return list(chosen)


def fits(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> bool:
    legal = why_illegal(config, problem, gpu) is None
    return legal and resident_blocks(estimate(config, problem, gpu), gpu) > 0


def compiled_as(config: GemmConfig, problem: GemmProblem, first: GemmProblem) -> GemmProblem:
    """A problem that config compiles to the same kernel for: the first, for most orders."""
    same = config.swizzle not in SQUARE_SWIZZLES and problem.aligned == first.aligned
    return first if same else problem


class Table:
    """One problem's file: what was measured and what could not be."""

    def __init__(self, problem: GemmProblem, gpu: Gpu, folder: Path) -> None:
        self.problem = problem
        self.path = folder / f"{str(problem).replace(':', '-')}.json"
        self._header = {"problem": str(problem), **stamp(gpu)}
        self.measurements: list[dict[str, Any]] = []
        self.infeasible: list[dict[str, Any]] = []
        if self.path.exists():
            found = json.loads(self.path.read_text())
            self.measurements, self.infeasible = found["measurements"], found["infeasible"]

    def known(self) -> set[GemmConfig]:
        rows = self.measurements + self.infeasible
        return {GemmConfig.from_dict(row["config"]) for row in rows}

    def write(self) -> None:
        """Replace the file at once; a row a line."""
        lines = [json.dumps(self._header)[:-1]]
        for name in ("measurements", "infeasible"):
            rows = ",\n".join(json.dumps(row) for row in getattr(self, name))
            lines.append(f'"{name}": [\n{rows}]')
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(",\n".join(lines) + "}\n")
        temporary.replace(self.path)


def fill(
    table: Table,
    tasks: Sequence[tuple[GemmConfig, GemmProblem]],
    laboratory: Laboratory,
    ms: float,
    until: float,
) -> None:
    """Measure what table lacks, until time.monotonic() is `until`.

    tasks: each configuration, and the problem it is compiled for.
    """
    known = table.known()
    for config, compiled_for in tasks:
        if config in known:
            continue
        if time.monotonic() > until:
            break
        try:
            resources = laboratory.compilers((config, compiled_for))
            why = why_infeasible(resources, laboratory.gpu)
            if why is not None:
                raise CandidateError(why, "Infeasible")
            found = laboratory.bench(Screening(table.problem, config, ms))
        except CandidateError as error:
            reason = {"kind": error.kind, "reason": str(error)[:300]}
            table.infeasible.append({"config": config.to_dict(), **reason})
        else:
            times = {
                name: round(getattr(found, name), 3) for name in ("time_us", "low_us", "high_us")
            }
            row = {"config": config.to_dict(), **times, "method": found.method}
            table.measurements.append(row)
        if (len(table.measurements) + len(table.infeasible)) % KEEP_EVERY == 0:
            table.write()
    table.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=220)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop measuring after them")
    parser.add_argument("--screening-ms", type=float, default=8)
    parser.add_argument("--pool", type=int, default=520)
    parser.add_argument("--part", default="0/1", help="which problems, as 0/2")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--fitting", action="store_true", help="the problems to fit on")
    parser.add_argument("--problems", nargs="*", help="these instead, in text form")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = detect(0)
    folder = options.out or folder_of(gpu) / "tables" / ("fitting" if options.fitting else "")
    shapes = ["x".join(map(str, shape)) for shape in FITTING] if options.fitting else SHAPES
    texts = options.problems or [f"{shape}:{options.dtype}:{options.layout}" for shape in shapes]
    part, parts = map(int, options.part.split("/"))
    problems = [GemmProblem.parse(text) for text in texts][part::parts]
    effort = replace(EFFORTS["standard"], name="tables", candidate_s=20.0)
    began = time.monotonic()
    pool = drawn(problems, gpu, options.pool, options.part)
    tasks = {
        problem: [
            (config, compiled_as(config, problem, problems[0]))
            for config in [config for config in pool if fits(config, problem, gpu)][: options.count]
        ]
        for problem in problems
    }
    print(f"{len(problems)} problems sampled in {time.monotonic() - began:.0f} s", flush=True)
    with closing(Laboratory(gpu, 0, effort, None)) as laboratory:
        for index, problem in enumerate(problems):
            for following in problems[index : index + AHEAD]:
                known = Table(following, gpu, folder).known()
                laboratory.compilers.prefetch(
                    [task for task in tasks[following] if task[0] not in known]
                )
            table = Table(problem, gpu, folder)
            started = time.monotonic()
            fill(table, tasks[problem], laboratory, options.screening_ms, began + options.seconds)
            best = min((row["time_us"] for row in table.measurements), default=math.nan)
            print(
                f"{problem!s:30} {len(table.measurements)} measured, {len(table.infeasible)} not, "
                f"best {best:.1f} us, {time.monotonic() - started:.0f} s",
                flush=True,
            )
            if time.monotonic() > began + options.seconds:
                break
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
