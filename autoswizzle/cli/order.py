"""`autoswizzle order`: the tile order as a grid of program ids."""

from pathlib import Path
from typing import Annotated

import typer

from autoswizzle.cli.options import GroupSize, Json, check_group_size, choice, integer, plot_to
from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES, GemmConfig
from autoswizzle.errors import ArgumentError
from autoswizzle.report.tables import grid, print_json

MAX_CELLS = 1 << 22  # of a printed grid: above it neither a terminal nor an image shows anything
DEFAULT_WAVE = 132  # programs at once in a plot: one for each SM of an H200


def order(
    swizzle: Annotated[
        str, typer.Argument(parser=choice(*SWIZZLES), metavar="ORDER", help=", ".join(SWIZZLES))
    ],
    grid_m: Annotated[
        int, typer.Argument(parser=integer(1), metavar="GRID_M", help="Tiles along m.")
    ],
    grid_n: Annotated[
        int, typer.Argument(parser=integer(1), metavar="GRID_N", help="Tiles along n.")
    ],
    group_size: GroupSize = None,
    plot: Annotated[
        Path | None,
        plot_to("Draw the order as a heat map with the first waves marked."),
    ] = None,
    wave: Annotated[
        int | None,
        typer.Option(
            "--wave",
            parser=integer(1),
            metavar="N",
            help=f"Programs that run at once, for --plot. Default: {DEFAULT_WAVE}, "
            "at most a quarter of the grid.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a tile order as a grid.

    Cell (m, n) holds the id of the program that computes tile (m, n).
    """
    import numpy as np

    from autoswizzle.simulator.order import tile_order

    if grid_m * grid_n > MAX_CELLS:
        raise ArgumentError(f"the grid must have at most {MAX_CELLS} tiles, got {grid_m}x{grid_n}")
    check_group_size(group_size, swizzle)
    if wave is not None and plot is None:
        raise ArgumentError("--wave must go with --plot")
    group_size = group_size or GemmConfig().group_size
    tiles = tile_order(swizzle, grid_m, grid_n, group_size)
    ids = np.empty((grid_m, grid_n), dtype=np.int64)
    ids[tiles[:, 0], tiles[:, 1]] = np.arange(len(tiles))
    if plot is not None:
        from autoswizzle.report.plots import plot_order

        title = swizzle + (f" {group_size}" if swizzle in GROUPED_SWIZZLES else "")
        plot_order(ids, title, wave or max(1, min(DEFAULT_WAVE, ids.size // 4)), plot)
    if as_json:
        print_json(
            {
                "order": swizzle,
                "group_size": group_size if swizzle in GROUPED_SWIZZLES else None,
                "grid_m": grid_m,
                "grid_n": grid_n,
                "ids": ids.tolist(),
            }
        )
    else:
        print(grid(ids.tolist()))
