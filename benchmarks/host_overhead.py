"""Host time of one eager call, 512^3 bf16, against torch.matmul in the same process.

    python benchmarks/host_overhead.py [--rounds 300]
    python benchmarks/host_overhead.py --dry-run      # the same calls on a CPU, for its code's sake

Variants run in turn, each a chunk of calls short enough never to fill the launch queue, and the
device is idle between chunks; the figure is the median over the rounds, its ratio that of the
chunks of one round. Writes results/<gpu>/host-overhead.json and prints a table last.
"""

import argparse
import gc
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from record import folder_of, stamp, write

import autoswizzle
from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.hardware import detect
from autoswizzle.plans import plan_of
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import shortlist
from autoswizzle.space import FAMILIES, branches, candidates
from autoswizzle.toolchain import triton_version

SIDE = 512
CHUNK = 200  # calls; the launch queue holds 1024
HIT, MISS, GRAD, COMPILED, REPLAY = 0.8, 1.35, 1.4, 1.1, 1.02  # the bounds of this claim

Call = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """A call, what it is compared with, and the largest ratio it may have."""

    name: str
    call: Call
    base: str = "torch.matmul"
    bound: float | None = None
    patched: bool = False  # run under a patch, put in place before the clock starts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["AUTOSWIZZLE_CACHE_DIR"] = tempfile.mkdtemp()  # nothing but this script's entries
    os.environ["AUTOSWIZZLE_CACHE_PATH"] = ""
    os.environ["AUTOSWIZZLE_ON_MISS"] = "torch"
    torch.compiler.config.force_disable_caches = True  # they may hold graphs of before tuning
    variants = on_cpu() if options.dry_run else on_gpu()
    rows = measured(variants, 3 if options.dry_run else options.rounds)
    if not options.dry_run:
        gpu = detect(0)
        path = (options.out or folder_of(gpu)) / "host-overhead.json"
        write(path, {**stamp(gpu), "side": SIDE, "rounds": options.rounds, "rows": rows})
    print_table(rows)


def operands(
    device: str, side: int = SIDE, *, grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(side, side, dtype=torch.bfloat16, device=device, requires_grad=grad)
    b = torch.randn(side, side, dtype=torch.bfloat16, device=device, requires_grad=grad)
    return a, b


def on_cpu() -> list[Variant]:
    a, b = operands("cpu", 16)
    compiled = torch.compile(autoswizzle.matmul, backend="aot_eager", fullgraph=True)
    return [
        Variant("torch.matmul", lambda: torch.matmul(a, b)),
        Variant("no case for kernels", lambda: autoswizzle.matmul(a, b), bound=MISS),
        Variant("patched", lambda: torch.matmul(a, b), bound=MISS, patched=True),
        Variant("compiled, aot_eager", lambda: compiled(a, b)),
    ]


def on_gpu() -> list[Variant]:
    """Every variant; each has operands of another storage layout or size, hence its own plan."""
    a, b = operands("cuda")
    x, y = operands("cuda", grad=True)
    odd = a[: SIDE - 8]
    transposed = a.t()
    problem = GemmProblem(SIDE, SIDE, SIDE)
    found = [
        Variant("torch.matmul", lambda: torch.matmul(a, b)),
        Variant("torch.matmul, grad", lambda: torch.matmul(x, y)),
        Variant("memoised miss", lambda: autoswizzle.matmul(odd, b), bound=MISS),
    ]
    put(GemmProblem(SIDE, SIDE, SIDE, layout="tn"), TORCH)
    found.append(Variant("torch decision", lambda: autoswizzle.matmul(transposed, b), bound=MISS))
    for family in FAMILIES:
        config = config_of(family, problem)
        if config is None:
            continue
        found.append(Variant(f"hit, {family}", hit(family, config), bound=HIT))
        given = f"config=, {family}"
        found.append(Variant(given, lambda c=config: autoswizzle.matmul(a, b, config=c)))  # type: ignore[misc]
    fastest = next(item.config for item in shortlist(problem, detect(0)) if item.config != TORCH)
    put(problem, fastest)
    found += [
        Variant("patched", lambda: torch.matmul(a, b), bound=1.0, patched=True),
        Variant("hit, grad", lambda: autoswizzle.matmul(x, y), "torch.matmul, grad", GRAD),
    ]
    return found + compiled_variants(a, b)


def hit(family: str, config: GemmConfig) -> Call:
    """A call that hits an entry of this family: of m 512 + a few, so that each has its own."""
    extra = 8 * (1 + list(FAMILIES).index(family))
    a = torch.randn(SIDE + extra, SIDE, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda")
    put(GemmProblem(SIDE + extra, SIDE, SIDE), config)
    autoswizzle.matmul(a, b)
    chosen = plan_of(a, b).config
    if chosen != config:
        raise SystemExit(f"{family} must run {config}, it runs {chosen}")
    return lambda: autoswizzle.matmul(a, b)


def compiled_variants(a: torch.Tensor, b: torch.Tensor) -> list[Variant]:
    theirs = torch.compile(lambda a, b: torch.matmul(a, b), fullgraph=True)
    ours = torch.compile(lambda a, b: autoswizzle.matmul(a, b), fullgraph=True)
    return [
        Variant("torch.matmul, compiled", lambda: theirs(a, b)),
        Variant("hit, compiled", lambda: ours(a, b), "torch.matmul, compiled", COMPILED),
        Variant("torch.matmul, replayed", graph_of(lambda: theirs(a, b))),
        Variant("hit, replayed", graph_of(lambda: ours(a, b)), "torch.matmul, replayed", REPLAY),
    ]


def graph_of(call: Call) -> Call:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def config_of(family: str, problem: GemmProblem) -> GemmConfig | None:
    """The best configuration of a family by the model, or its first legal one."""
    gpu = detect(0)
    branch = {name: values for name, values in branches(problem, gpu).items() if name == family}
    ranked = (item.config for item in shortlist(problem, gpu) if item.config.kernel == family)
    return next(itertools.chain(ranked, candidates(problem, gpu, branch)), None)


def put(problem: GemmProblem, config: GemmConfig) -> None:
    """An entry that says config beats torch."""
    source = "" if config == TORCH else kernels.source_hash(config.kernel)
    key = key_for(problem, detect(0), source, triton_version())
    entry = CacheEntry(key, config, time_us=1.0, torch_us=2.0, ratio=2.0)
    dispatcher().store.put(entry)


def measured(variants: list[Variant], rounds: int) -> list[dict[str, Any]]:
    for variant in variants:
        chunk(variant)
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    gc.disable()
    for number in range(rounds):
        for variant in variants[:: 1 if number % 2 else -1]:
            times[variant.name].append(chunk(variant))
    gc.enable()
    return [
        {
            "name": variant.name,
            "us": statistics.median(times[variant.name]),
            "base": variant.base,
            "ratio": statistics.median(
                ours / theirs
                for ours, theirs in zip(times[variant.name], times[variant.base], strict=True)
            ),
            "bound": variant.bound,
        }
        for variant in variants
    ]


def chunk(variant: Variant) -> float:
    """Microseconds of one of a chunk of calls."""
    handle = autoswizzle.patch() if variant.patched else None
    call = variant.call
    try:
        began = time.perf_counter()
        for _ in range(CHUNK):
            call()
        took = time.perf_counter() - began
    finally:
        if handle is not None:
            handle.undo()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return took / CHUNK * 1e6


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'call':26s} {'us':>7s} {'ratio':>6s} {'bound':>6s}")
    for row in rows:
        bound = "" if row["bound"] is None else f"{row['bound']:6.2f}"
        over = "  over" if row["bound"] is not None and row["ratio"] > row["bound"] else ""
        print(f"{row['name']:26s} {row['us']:7.2f} {row['ratio']:6.3f} {bound}{over}")


if __name__ == "__main__":
    main()
