"""What a tile's power costs: its time beside torch's while both share a clock, and at its own.

    python benchmarks/own_clocks.py [--problems ...] [--own-ms 3000] [--out FILE]

At its power limit a board lowers its clock until the power fits. In turns of 4 ms (timing.SHORT)
all contenders run at one clock, in turns of 120 ms, of which 40 count (LONG), each at the one its
power leaves it, as where it runs alone. Sustained timing, the same data. Ratios are torch's time
over the tile's with their 95 % intervals. Writes results/<gpu>/own_clocks.json.
"""

import argparse
from pathlib import Path
from typing import Any

from record import folder_of, stamp, write

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import detect
from autoswizzle.laboratory import compile_ahead, run_kernel
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurer, Race
from autoswizzle.search.timing import LONG
from autoswizzle.space import why_illegal

PROBLEMS = (
    "16384x16384x16384", "8192x32768x8192", "8192x8192x8192", "2048x10240x8192", "2048x28672x4096",
    "4096x4096x4096",
)  # fmt: skip
TILES = tuple(
    GemmConfig(
        "wgmma", rows, columns, 64, num_stages=stages, swizzle="serpentine", group_size=12,
        persistent=True, epilogue_subtile=slices, warp_specialize=warps, swap_ab=swapped,
    )
    for rows, columns, stages, slices, warps, swapped in (
        (192, 256, 3, 4, "cooperative", False),
        (128, 256, 4, 4, "cooperative", False),
        (256, 128, 4, 4, "cooperative", False),
        (128, 192, 5, 4, "pingpong", True),
        (128, 128, 6, 2, "pingpong", False),
    )
)  # fmt: skip
ONE_CLOCK_MS = 200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="*", default=[f"{size}:bf16:nt" for size in PROBLEMS])
    parser.add_argument("--own-ms", type=float, default=3000.0, help="for each contender")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = detect(0)
    path = options.out or folder_of(gpu) / "own_clocks.json"
    rows: list[dict[str, Any]] = []
    for problem in map(GemmProblem.parse, options.problems):
        tiles = [tile for tile in TILES if why_illegal(tile, problem, gpu) is None]
        compile_ahead(tiles, problem, gpu)
        contenders = (TORCH, *tiles)
        measurer = Measurer(problem, gpu, run_kernel)
        shared = measurer.race(contenders, ONE_CLOCK_MS)
        alone = measurer.race(contenders, options.own_ms, LONG)
        for place, tile in enumerate(tiles, start=1):
            row = {"problem": str(problem), "config": tile.to_dict()}
            rows.append(row | {"one_clock": over(shared, place), "own": over(alone, place)})
            print(line(rows[-1], tile), flush=True)
        write(path, {**stamp(gpu), "rows": rows})


def over(race: Race, place: int) -> tuple[float, ...]:
    """Torch's time, the first contender's, over that of the one at place, with its interval."""
    ratio, low, high = race.ratio(place)
    return 1 / ratio, 1 / high, 1 / low


def line(row: dict[str, Any], tile: GemmConfig) -> str:
    shown = [
        f"{name} {row[name][0]:.3f} [{row[name][1]:.3f}, {row[name][2]:.3f}]"
        for name in ("one_clock", "own")
    ]
    return f"{row['problem']:28} {tile.tile:11} {tile.warp_specialize:12} {'  '.join(shown)}"


if __name__ == "__main__":
    main()
