"""A Llama-3-8B-shaped decoder stack, tuned and patched, against plain torch in the same process.

    python benchmarks/model.py --layers 8 --tune-seconds 15 [--only prefill] [--no-tune]
    python benchmarks/model.py --dry-run      # every case once, small, on a CPU

Cases: prefill of 2048 and 8192 tokens; decode of batch 1, 16 and 64 with 2048 tokens of context,
as a CUDA graph; a training step of 4096 tokens (forward, backward, SGD). Each eager against eager
and compiled against compiled. Plain and patched alternate (A B B A), the ratio is the median over
the rounds with its 95 % interval; gemm_share is the part of plain torch's device time in products.
Problems are recorded, and tuned unless they have an entry; --margin: by how much their winners must
be faster than torch, instead of the effort's. Writes results/<gpu>/model.json after each case, with
the verdicts on its problems, and prints a table last.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from record import folder_of, stamp, write
from torch.nn import functional

import autoswizzle
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.hardware import detect
from autoswizzle.search.effort import find_effort
from autoswizzle.search.statistics import median_interval

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from llama import LLAMA_3_8B, SMALL, Decoder, Shape, build

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
BOUNDS = {"prefill": 1.02, "decode": 0.99, "train": 1.01}

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One kind of work at one size: tokens of a prompt or a training batch, or sequences."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"{self.kind} {self.size}"


CASES = [
    Case("prefill", 2048), Case("prefill", 8192),
    Case("decode", 1), Case("decode", 16), Case("decode", 64),
    Case("train", 4096),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6, help="timed for each comparison")
    parser.add_argument("--tune-seconds", type=float, default=15, help="searched for each problem")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--margin", type=float)
    parser.add_argument("--no-tune", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of cases")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--entries", type=Path, help="a cache file that gets the verdicts")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    effort = find_effort(options.effort).with_margin(options.margin)
    torch.compiler.config.force_disable_caches = True  # they may hold graphs of before tuning
    cases = [case for case in CASES if not options.only or case.kind in options.only]
    shape = replace(LLAMA_3_8B, layers=options.layers)
    if options.dry_run:
        shape, options.seconds, options.context = SMALL, 0.0, 32
        cases = [replace(case, size=min(case.size, 16)) for case in cases]
    rows: list[dict[str, Any]] = []
    verdicts: dict[str, dict[str, Any]] = {}
    for case in dict.fromkeys(cases):
        found, of_problems = compared(case, shape, options)
        rows += found
        verdicts |= of_problems
        if not options.dry_run:
            gpu = detect(0)
            path = (options.out or folder_of(gpu)) / "model.json"
            told = {"layers": options.layers, "context": options.context, "margin": effort.margin}
            write(path, {**stamp(gpu), **told, "verdicts": verdicts, "rows": rows})
    print_table(rows)


def compared(
    case: Case, shape: Shape, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The rows of a case, eager and compiled, and what tuning says of its problems."""
    device = "cpu" if options.dry_run else "cuda"
    model = build(shape, device)
    work = work_of(case, model, model, options.context)
    with autoswizzle.record_shapes() as counts:
        work()
    problems = [problem for problem in counts if problem.batch == 1]
    verdicts = {}
    if not (options.dry_run or options.no_tune):
        tune = {
            "effort": options.effort, "seconds": options.tune_seconds, "margin": options.margin,
            "out": options.entries,
        }  # fmt: skip
        for result in autoswizzle.tune(problems, **tune).results:
            chosen = result.error if result.entry is None else result.entry.config
            print(case, result.problem, chosen, flush=True)
            if result.entry is not None:
                verdicts[str(result.problem)] = verdict(result.entry)
    share = None if options.dry_run else gemm_share(work)
    tuned = 0
    if not options.dry_run:
        tuned = sum(not decision.uses_torch for decision in autoswizzle.prepare(problems))
    rows = []
    for mode in ("eager", "compiled"):
        torch._dynamo.reset()
        backend = "aot_eager" if options.dry_run else "inductor"
        run = torch.compile(model, backend=backend) if mode == "compiled" else model
        work = work_of(case, model, run, options.context)
        theirs, ours = versions_of(case, model, work, graphs=not options.dry_run)
        ratio, low, high, plain_us = race(model, theirs, ours, options.seconds)
        rows.append(
            {
                "case": str(case), "mode": mode, "ratio": ratio, "low": low, "high": high,
                "plain_us": plain_us, "gemm_share": share, "bound": BOUNDS[case.kind],
                "problems": len(problems), "own_kernels": tuned,
            }
        )  # fmt: skip
        print(line(rows[-1]), flush=True)
    return rows, verdicts


def verdict(entry: CacheEntry) -> dict[str, Any]:
    """What an entry says, and of when."""
    ratio = {name: getattr(entry, name) for name in ("ratio", "ratio_low", "ratio_high")}
    return {"config": entry.config.to_dict(), **ratio, "date": entry.date}


def work_of(case: Case, model: Decoder, run: Callable[..., Any], context: int) -> Work:
    """One prefill, decoding step or training step of the model, called as run."""
    device = model.embed.weight.device
    vocabulary = model.shape.vocabulary
    if case.kind == "decode":
        tokens = torch.randint(vocabulary, (case.size, 1), device=device)
        position, caches = (
            torch.tensor([context - 1], device=device),
            model.caches(case.size, context),
        )
        return torch.no_grad()(lambda: run(tokens, position, caches))
    tokens = torch.randint(vocabulary, (1, case.size + 1), device=device)
    position = torch.arange(case.size, device=device)
    if case.kind == "prefill":
        return torch.no_grad()(lambda: run(tokens[:, :-1], position, last=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        logits = run(tokens[:, :-1], position)
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def versions_of(case: Case, model: Decoder, work: Work, *, graphs: bool) -> tuple[Work, Work]:
    """The work for plain torch and patched; decoding as replayed CUDA graphs."""
    work()
    with autoswizzle.patch(model):
        work()
    if case.kind != "decode" or not graphs:
        return work, work
    theirs = captured(work)
    with autoswizzle.patch(model):
        return theirs, captured(work)


def captured(work: Work) -> Work:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def race(
    model: Decoder, theirs: Work, ours: Work, seconds: float
) -> tuple[float, float, float, float]:
    """Plain time over patched: median, 95 % interval; and the plain microseconds."""

    def patched(repeats: int) -> float:
        with autoswizzle.patch(model):
            return timed(ours, repeats)

    for _ in range(2):
        timed(theirs, 1)
        patched(1)
    repeats = max(1, round(4_000 / timed(theirs, 1)))  # short turns share the board's clock
    ratios: list[float] = []
    plain: list[float] = []
    deadline = time.monotonic() + seconds
    while len(ratios) < (6 if seconds > 0 else 1) or time.monotonic() < deadline:
        first, second, third = timed(theirs, repeats), patched(repeats), patched(repeats)
        fourth = timed(theirs, repeats)
        ratios.append((first + fourth) / (second + third))
        plain.append((first + fourth) / 2)
    if seconds == 0:
        return ratios[0], ratios[0], ratios[0], plain[0]
    return *median_interval(ratios), median_interval(plain)[0]


def timed(work: Work, repeats: int) -> float:
    """Microseconds of one of some runs in a row, after one that keeps the device busy meanwhile.

    A module that was just patched is slower to call the first time, which is no run's time.
    """
    work()
    if not torch.cuda.is_available():
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - began) / repeats * 1e6
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats * 1e3


def gemm_share(work: Work) -> float:
    """The part of the device time of plain torch that products take."""
    work()
    with torch.profiler.profile() as profile:
        work()
        torch.cuda.synchronize()
    found = profile.key_averages()
    kernels = [item for item in found if item.device_type.name == "CUDA"]
    total = sum(item.self_device_time_total for item in kernels)
    # an operator's row holds the time of its kernels a second time
    products = sum(item.self_device_time_total for item in found if item.key in PRODUCTS)
    return products / total if total else 0.0


def line(row: dict[str, Any]) -> str:
    share = "-" if row["gemm_share"] is None else f"{row['gemm_share']:.2f}"
    under = "  under" if row["high"] < row["bound"] else ""
    return (
        f"{row['case']:14s} {row['mode']:9s} {row['ratio']:.3f} [{row['low']:.3f}, "
        f"{row['high']:.3f}] {row['plain_us'] / 1e3:9.3f} ms  GEMM share {share}  own kernels "
        f"{row['own_kernels']}/{row['problems']}  bound {row['bound']}{under}"
    )


def print_table(rows: list[dict[str, Any]]) -> None:
    print("plain torch / patched, above 1 is faster patched")
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
