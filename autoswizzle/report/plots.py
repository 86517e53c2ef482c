"""Plots, drawn with matplotlib where the `plot` extra is installed.

Each function writes `path`, whose suffix is the format, and raises UnavailableError without
matplotlib.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoswizzle.errors import UnavailableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autoswizzle.simulator.ranking import Prediction

SUFFIXES = (".png", ".svg", ".pdf")
WAVES_SHOWN = 4
DASHES = ((0, (1, 1)), (0, (4, 2)), (0, (6, 1, 1, 1)), (0, (2, 4)), (0, (8, 4)))
GIGA = 1e9


def plot_order(ids: "NDArray[Any]", title: str, wave: int, path: Path) -> None:
    """Draw a tile order: ids as a heat map, and which wave of `wave` programs owns each tile.

    ids: int array (grid_m, grid_n), cell (m, n) holding the program id.
    """
    figure = _figure(11, 5)
    heat, waves = figure.subplots(1, 2)
    image = heat.imshow(ids, cmap="viridis", interpolation="nearest")
    heat.set_title(f"{title}: program id")
    figure.colorbar(image, ax=heat)
    shown = (ids // wave).clip(max=WAVES_SHOWN)
    edges = [i - 0.5 for i in range(WAVES_SHOWN + 2)]
    image = waves.imshow(
        shown, cmap="tab10", vmin=-0.5, vmax=9.5, interpolation="nearest", alpha=0.9
    )
    waves.set_title(f"waves of {wave} programs")
    bar = figure.colorbar(image, ax=waves, ticks=range(WAVES_SHOWN + 1), boundaries=edges)
    bar.ax.set_yticklabels([*(str(i + 1) for i in range(WAVES_SHOWN)), "later"])
    for axes in (heat, waves):
        axes.set_xlabel("n (tiles)")
        axes.set_ylabel("m (tiles)")
    figure.savefig(path, dpi=150)


def plot_traffic(predictions: "Mapping[str, Sequence[Prediction]]", title: str, path: Path) -> None:
    """Draw DRAM traffic and predicted time of tile orders over their group size.

    predictions: by order, one for each group size, or a single one where the order has none.
    """
    figure = _figure(11, 5)
    traffic, time = figure.subplots(1, 2, sharex=True)
    for order, found in predictions.items():
        sizes = [prediction.config.group_size for prediction in found]
        bytes_moved = [(p.dram_read_bytes + p.dram_write_bytes) / GIGA for p in found]
        dashes = DASHES[len(traffic.get_lines()) % len(DASHES)]
        for axes, values in ((traffic, bytes_moved), (time, [p.time_us for p in found])):
            if len(found) > 1:
                axes.plot(sizes, values, marker="o", label=order)
            else:
                axes.axhline(values[0], linestyle=dashes, color="gray", label=order)
    for axes, label in ((traffic, "DRAM traffic, GB"), (time, "predicted time, us")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("group size, tiles")
        axes.set_ylabel(label)
        axes.legend()
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=150)


def plot_terms(predictions: "Sequence[Prediction]", title: str, path: Path) -> None:
    """Draw the terms of each prediction side by side, and its time as a line across them."""
    figure = _figure(11, 1.5 + 0.5 * len(predictions))
    axes = figure.subplots()
    terms = [name for name, us in predictions[0].terms.items() if us >= 0]
    height = 0.8 / len(terms)
    for place, term in enumerate(terms):
        lanes = [row - 0.4 + (place + 0.5) * height for row in range(len(predictions))]
        axes.barh(lanes, [p.terms[term] for p in predictions], height, label=term)
    for row, prediction in enumerate(predictions):
        axes.vlines(prediction.time_us, row - 0.4, row + 0.4, color="black")
    axes.set_yticks(range(len(predictions)), [str(p.config) for p in predictions], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("us (black: the predicted time)")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_title(title)
    figure.savefig(path, dpi=150)


def plot_conflicts(ways: Mapping[str, Mapping[str, int | None]], title: str, path: Path) -> None:
    """Draw how many ways each instruction conflicts on each layout, as a grid of numbers.

    ways: by layout, then by instruction; None where it does not apply.
    """
    figure = _figure(10, 1.5 + 0.6 * len(ways))
    axes = figure.subplots()
    instructions = list(next(iter(ways.values())))
    rows = [[row[name] or 0 for name in instructions] for row in ways.values()]
    axes.imshow(rows, cmap="Reds", vmin=0, vmax=32, aspect="auto")
    for y, row in enumerate(rows):
        for x, count in enumerate(row):
            axes.text(x, y, str(count) if count else "-", ha="center", va="center")
    axes.set_xticks(range(len(instructions)), instructions, rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), list(ways))
    axes.set_title(title)
    figure.savefig(path, dpi=150)


def _figure(width: float, height: float) -> Any:  # noqa: ANN401 - matplotlib is optional
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("a plot needs matplotlib: pip install 'autoswizzle[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")
