"""How fast the clock follows a change of kernel: the time of a call, by the age of its turn.

    python benchmarks/settling.py [--turn-ms 240] [--turns 9] [--problems ...] [--out FILE]

A kernel of ours and torch.matmul take turns, sustained timing. Of every turn the mean time of a
call in each window of 20 ms is written; printed are the medians over the turns, relative to those
of the last third of a turn, and how much single windows scatter.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from record import folder_of, stamp, write

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import detect
from autoswizzle.laboratory import compile_ahead, run_kernel
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurer
from autoswizzle.search.timing import CudaBackend, Loop, Turn, counted_replays

PROBLEMS = (
    "2048x2048x2048:bf16:nt",
    "4096x4096x4096:bf16:nt",
    "8192x8192x8192:bf16:nt",
)
OURS = GemmConfig(
    "wgmma", 128, 256, 64, num_stages=4, persistent=True, epilogue_subtile=4,
    warp_specialize="cooperative", group_size=12,
)  # fmt: skip
WINDOW_MS = 20.0


def windows(loops: Sequence[Loop], turns: int, turn_ms: float) -> list[list[list[float]]]:
    """Of every loop, of each of its turns, the time of a call in microseconds in each window."""
    backend = CudaBackend(0)
    count = [counted_replays(item, Turn(0.0, WINDOW_MS)) for item in loops]
    stamps = []
    for _ in range(turns):
        for place, item in enumerate(loops):
            turn = [backend.record()]
            for _ in range(round(turn_ms / WINDOW_MS)):
                for _ in range(count[place]):
                    item.replay()
                turn.append(backend.record())
            stamps.append((place, turn))
    backend.synchronize()
    found: list[list[list[float]]] = [[] for _ in loops]
    for place, turn in stamps:
        calls = count[place] * loops[place].calls
        found[place].append([1e3 * a.elapsed_time(b) / calls for a, b in pairwise(turn)])
    return found


def row_of(problem: GemmProblem, name: str, turns: list[list[float]]) -> dict[str, Any]:
    settled = turns[1:]  # the first warms up
    profile = [median(window) for window in zip(*settled, strict=True)]
    last = profile[-len(profile) // 3 :]
    scatter = median(stdev(window) / mean(window) for window in zip(*settled, strict=True))
    print(
        f"{problem!s:26} {name:5} {mean(last):9.1f} us, windows of {WINDOW_MS:.0f} ms:",
        *(f"{us / mean(last):.3f}" for us in profile),
        f"scatter {scatter:.1%}",
        flush=True,
    )
    return {"problem": str(problem), "kernel": name, "scatter": scatter, "turns_us": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turn-ms", type=float, default=240.0)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.turns < 3 or options.turn_ms < 3 * WINDOW_MS:
        parser.error(
            f"--turns must be at least 3 and --turn-ms {3 * WINDOW_MS:.0f}, "
            f"got {options.turns} and {options.turn_ms:g}"
        )
    gpu = detect(0)
    rows = []
    for problem in map(GemmProblem.parse, options.problems):
        compile_ahead([OURS], problem, gpu)
        measurer = Measurer(problem, gpu, run_kernel)
        loops = measurer.loops([TORCH, OURS])
        found = windows(loops, options.turns, options.turn_ms)
        rows += [row_of(problem, *item) for item in zip(("torch", "wgmma"), found, strict=True)]
        del measurer, loops
        torch.cuda.empty_cache()
    path = options.out or folder_of(gpu) / "settling.json"
    write(path, {**stamp(gpu), "window_ms": WINDOW_MS, "config": OURS.to_dict(), "rows": rows})


if __name__ == "__main__":
    main()
