"""Plots, drawn with matplotlib where the `plot` extra is installed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoswizzle.errors import UnavailableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAVES_SHOWN = 4


def plot_order(ids: "NDArray[Any]", title: str, wave: int, path: Path) -> None:
    """Draw a tile order: ids as a heat map, and which wave of `wave` programs owns each tile.

    ids: int array (grid_m, grid_n), cell (m, n) holding the program id. Writes path (its suffix is
    the format). Raises UnavailableError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("a plot needs matplotlib: pip install 'autoswizzle[plot]'") from None
    figure = Figure(figsize=(11, 5), layout="constrained")
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
