"""`autoswizzle smem`: shared-memory layouts, their bank conflicts, and a tiled GEMM's traffic."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoswizzle.cli.failures import name_of
from autoswizzle.cli.options import (
    Device,
    Json,
    choice,
    extents,
    integer,
    parsed,
    plot_to,
    positive,
)
from autoswizzle.cli.tunables import Block
from autoswizzle.errors import ArgumentError
from autoswizzle.problem import GemmProblem
from autoswizzle.report.tables import byte_size, fields, print_json, table
from autoswizzle.smem import (
    INSTRUCTIONS,
    KINDS,
    accumulator_lanes,
    bank_conflicts,
    gemm_traffic,
    picture,
    row_lanes,
    tile_layout,
)

if TYPE_CHECKING:
    from autoswizzle.smem import Conflicts, TileLayout

BENCHED = GemmProblem(8192, 8192, 8192, "bf16", "nt")  # the source article's extents
PICTURE_ROWS = 8  # a swizzle repeats after 8 rows of 128 bytes
_WORDS = ("accumulator", *INSTRUCTIONS)
_COLUMNS = {"ldmatrix.x4": 16, "accumulator": 8}  # that a fragment spans
_READ = {  # the parameters that each way of use reads, beside --json
    "bench": ("problem", "rep", "device"),
    "traffic": ("block", "warps", "itemsize"),
    None: ("kind", "cols", "itemsize", "instruction", "plot"),
}

Traffic = Annotated[
    Any,
    typer.Option(
        "--traffic",
        parser=extents("MxNxK", "8192x8192x8192"),
        metavar="MxNxK",
        help="Print the bytes a tiled GEMM of this shape moves instead.",
    ),
]
WarpGrid = Annotated[
    Any,
    typer.Option(
        "--warps",
        parser=extents("DOWNxACROSS", "4x2"),
        metavar="DOWNxACROSS",
        help="Warps of a tile, for --traffic.",
    ),
]


def smem(
    context: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(
            parser=choice(*KINDS),
            metavar="LAYOUT",
            help=f"{', '.join(KINDS)}; also draws where the elements lie.",
            show_default=False,
        ),
    ] = None,
    cols: Annotated[
        int,
        typer.Option(
            "--cols", parser=integer(1), metavar="N", help="Elements of a row of the tile."
        ),
    ] = 64,
    itemsize: Annotated[
        int, typer.Option("--itemsize", parser=integer(1), metavar="BYTES", help="Of an element.")
    ] = 2,
    instruction: Annotated[
        str,
        typer.Option(
            "--instruction",
            parser=choice(*_WORDS),
            metavar="NAME",
            help="What a warp executes: ldmatrix.x1, .x2, .x4; ld.shared or st.shared .b8 to .b128 "
            "along rows; accumulator: the store of an mma result, two elements a lane.",
        ),
    ] = "ldmatrix.x4",
    traffic: Traffic = None,
    block: Block = None,
    warps: WarpGrid = None,
    bench: Annotated[
        bool,
        typer.Option(
            "--bench", help="Time the mma.sync kernel under every layout on this GPU instead."
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        plot_to("Draw the conflicts of every layout and instruction as a grid."),
    ] = None,
    problem: Annotated[
        GemmProblem,
        typer.Option(
            "--problem",
            parser=parsed(GemmProblem.parse),
            metavar="PROBLEM",
            help="For --bench: 16-bit, layout nt.",
        ),
    ] = BENCHED,
    rep: Annotated[
        float, typer.Option("--rep", parser=positive, metavar="MS", help="Timing of each layout.")
    ] = 200.0,
    device: Device = 0,
    as_json: Json = False,
) -> None:
    """Show bank conflicts and GEMM traffic.

    Every shared-memory layout under one instruction, or the bytes a whole GEMM moves. Needs no GPU.
    """
    _check_read(context, "bench" if bench else "traffic" if traffic is not None else None)
    if bench:
        from autoswizzle.cli.smem_bench import bench as bench_layouts

        bench_layouts(problem, rep, device, as_json)
        return
    if traffic is not None:
        _print_traffic(traffic, block or (128, 128, 64), warps or (2, 2), itemsize, as_json)
        return
    layouts = {name: tile_layout(name, cols, itemsize) for name in ([kind] if kind else KINDS)}
    found = {name: _conflicts(layout, instruction) for name, layout in layouts.items()}
    if plot is not None:
        from autoswizzle.report.plots import plot_conflicts

        ways = {
            name: {word: _ways(layout, word) for word in _WORDS} for name, layout in layouts.items()
        }
        plot_conflicts(ways, f"ways, rows of {cols} elements of {itemsize} bytes", plot)
    rows = [
        (
            name,
            str(layouts[name].swizzle),
            layouts[name].row_bytes,
            cost.transactions,
            cost.wavefronts,
            cost.conflicts,
            cost.ways,
        )
        for name, cost in found.items()
    ]
    titles = ("layout", "swizzle", "row bytes", "transactions", "wavefronts", "conflicts", "ways")
    if as_json:
        print_json([dict(zip(titles, row, strict=True)) for row in rows])
        return
    print(f"{instruction} on rows of {cols} elements of {itemsize} bytes")
    print(table(titles, rows))
    if kind:
        step = max(1, 16 // itemsize)
        print(f"\n16-byte atom within its 128-byte line, every {step} elements")
        print(picture(layouts[kind], PICTURE_ROWS, cols, step=step, show="atom"))


def _check_read(context: typer.Context, use: str | None) -> None:
    """Raises ArgumentError for a stated parameter that this use would not read."""
    for param in context.command.params:
        name = str(param.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in ("as_json", use, *_READ[use]):
            continue
        rule = f"without --{use}"
        if use is None:
            rule = "with " + next(f"--{other}" for other, read in _READ.items() if name in read)
        raise ArgumentError(f"{name_of(param)} must go {rule}")


def _ways(layout: "TileLayout", instruction: str) -> int | None:
    try:
        return _conflicts(layout, instruction).ways
    except ArgumentError:  # not an instruction for such elements or rows
        return None


def _conflicts(layout: "TileLayout", instruction: str) -> "Conflicts":
    least = _COLUMNS.get(instruction, 1)
    if layout.cols < least:
        raise ArgumentError(f"--cols must be at least {least} for {instruction}, got {layout.cols}")
    if instruction.startswith("ldmatrix") and layout.itemsize != 2:
        raise ArgumentError(f"--itemsize must be 2 for ldmatrix, got {layout.itemsize}")
    if instruction == "accumulator":
        return bank_conflicts(layout, f"st.shared.b{16 * layout.itemsize}", accumulator_lanes())
    if instruction.startswith("ldmatrix"):
        return bank_conflicts(layout, instruction)
    size = int(instruction.rpartition("b")[2]) // 8
    if size < layout.itemsize:
        raise ArgumentError(
            f"--itemsize must be at most {size} for {instruction}, got {layout.itemsize}"
        )
    return bank_conflicts(layout, instruction, row_lanes(layout.cols, size // layout.itemsize))


def _print_traffic(
    shape: tuple[int, int, int],
    block: tuple[int, int, int],
    warps: tuple[int, int],
    itemsize: int,
    as_json: bool,
) -> None:
    moved = gemm_traffic(
        *shape,
        block_m=block[0],
        block_n=block[1],
        block_k=block[2],
        warps_m=warps[0],
        warps_n=warps[1],
        itemsize=itemsize,
    ).to_dict()
    if as_json:
        print_json(moved)
    else:
        print(fields([(name.replace("_", " "), byte_size(b)) for name, b in moved.items()]))
