"""Where the elements of a tile lie in shared memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoswizzle.errors import ArgumentError, check_choice
from autoswizzle.smem.swizzle import (
    MAX_BIT,
    NO_SWIZZLE,
    Ints,
    Swizzle,
    check_itemsize,
    integer,
    integers,
)

Layout = Callable[[Any, Any], Any]  # (rows, cols) of elements -> byte offsets, on int64 arrays

KINDS = ("none", "32", "64", "128", "padded")
ATOM_BYTES = 16  # what a swizzle moves as one piece, and one row of an ldmatrix matrix
LINE_BYTES = 128  # 32 banks of 4 bytes
MAX_CELLS = 1 << 22  # of a picture
MAX_ROW_BYTES = 1 << 31  # far beyond any shared memory; keeps offsets within int64
_VIEWS = ("bank", "atom", "offset")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """A row-major tile: row * (cols * itemsize + padding) + col * itemsize, then swizzled.

    cols: elements a row. itemsize, padding: bytes. swizzle: applied to byte offsets.
    """

    cols: int
    itemsize: int = 2
    swizzle: Swizzle = NO_SWIZZLE
    padding: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "cols", _elements("cols", self.cols, self.itemsize))
        object.__setattr__(self, "padding", integer("padding", self.padding, least=0))
        if self.row_bytes > MAX_ROW_BYTES:
            raise ArgumentError(
                f"cols x itemsize + padding must be at most {MAX_ROW_BYTES}, got {self.row_bytes}"
            )
        if not isinstance(self.swizzle, Swizzle):
            raise ArgumentError(f"swizzle must be a Swizzle, got {self.swizzle!r:.80}")

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return self.cols * self.itemsize + self.padding

    def __call__(self, row: ArrayLike, col: ArrayLike) -> Ints:
        """Byte offsets (int64) of elements (row, col), which broadcast together."""
        rows = integers("row", row, (1 << MAX_BIT) // self.row_bytes - 1)
        cols = integers("col", col, self.cols - 1)
        _check_shapes(rows, cols)
        return self.swizzle(np.asarray(rows * self.row_bytes + cols * self.itemsize))


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """What TMA writes and wgmma reads: column panels as wide as the swizzle, one after the other.

    rows: of the tile. swizzle_bytes: 32, 64 or 128, the width of a panel. itemsize: bytes.
    """

    rows: int
    swizzle_bytes: int
    itemsize: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _elements("rows", self.rows, self.itemsize))
        if type(self.swizzle_bytes) is not int or self.swizzle_bytes not in (32, 64, 128):
            raise ArgumentError(f"swizzle_bytes must be 32, 64 or 128, got {self.swizzle_bytes!r}")

    def __call__(self, row: ArrayLike, col: ArrayLike) -> Ints:
        """Byte offsets (int64) of elements (row, col), which broadcast together."""
        rows = integers("row", row, self.rows - 1)
        cols = integers("col", col, MAX_ROW_BYTES // self.itemsize - 1)
        _check_shapes(rows, cols)
        panel, within = np.divmod(cols * self.itemsize, self.swizzle_bytes)
        offset = (panel * self.rows + rows) * self.swizzle_bytes + within
        return Swizzle(_log2(self.swizzle_bytes // ATOM_BYTES), 4, 3)(np.asarray(offset))


def tile_layout(kind: str, cols: int, itemsize: int = 2) -> TileLayout:
    """The layout of KINDS for rows of cols elements of itemsize bytes.

    32, 64, 128: that many bytes, at most the row, take part in an XOR of the 16-byte atom with the
    number of the row (of the 128-byte line, where rows are shorter): SWIZZLE_32B, SWIZZLE_64B and
    SWIZZLE_128B for 128-byte rows. padded: 16 bytes after every row. Raises ArgumentError where a
    row is not a power-of-two number of atoms.
    """
    check_choice("kind", kind, KINDS)
    cols = _elements("cols", cols, itemsize)
    atoms, rest = divmod(cols * itemsize, ATOM_BYTES)
    if rest or not _is_power_of_two(atoms):
        raise ArgumentError(
            f"cols x itemsize must be a power of two of at least {ATOM_BYTES} bytes, "
            f"got {cols * itemsize}"
        )
    if kind in ("none", "padded"):
        return TileLayout(cols, itemsize, padding=ATOM_BYTES if kind == "padded" else 0)
    bits = min(_log2(int(kind) // ATOM_BYTES), _log2(atoms))
    return TileLayout(cols, itemsize, Swizzle(bits, 4, max(3, _log2(atoms))))


def picture(
    layout: Layout, rows: int, cols: int, *, step: int = 1, row_step: int = 1, show: str = "bank"
) -> str:
    """A text grid of where elements (row, col) lie, every step-th column and row_step-th row.

    show: bank (0..31, of the element's first byte), atom (16-byte piece within its 128-byte line,
    0..7) or offset (bytes).
    """
    check_choice("show", show, _VIEWS)
    if not callable(layout):
        raise ArgumentError(f"layout must be a function of (rows, cols), got {layout!r:.80}")
    down = range(0, integer("rows", rows, 1), integer("row_step", row_step, 1))
    across = range(0, integer("cols", cols, 1), integer("step", step, 1))
    if len(down) * len(across) > MAX_CELLS:
        raise ArgumentError(
            f"rows and cols must make at most {MAX_CELLS} cells, got {rows} rows, {cols} cols"
        )
    row_labels, col_labels = np.array(down), np.array(across)
    offsets: NDArray[Any] = integers("layout", layout(row_labels[:, None], col_labels[None, :]))
    cells = {
        "bank": offsets // 4 % 32,
        "atom": offsets // ATOM_BYTES % (LINE_BYTES // ATOM_BYTES),
        "offset": offsets,
    }[show]
    width = max(len(str(cells.max())), len(str(col_labels[-1])))
    margin = max(len("row"), len(str(row_labels[-1])))
    lines = ["row".rjust(margin) + " |" + "".join(f" {col:>{width}}" for col in col_labels)]
    lines.append("-" * len(lines[0]))
    for label, line in zip(row_labels, cells, strict=True):
        lines.append(f"{label:>{margin}} |" + "".join(f" {cell:>{width}}" for cell in line))
    return "\n".join(lines)


def _elements(name: str, count: object, itemsize: int) -> int:
    """Count as an int, of elements of itemsize bytes along one axis; raises ArgumentError."""
    check_itemsize(itemsize)
    found = integer(name, count, least=1)
    if found * itemsize > MAX_ROW_BYTES:
        raise ArgumentError(
            f"{name} x itemsize must be at most {MAX_ROW_BYTES}, got {found * itemsize}"
        )
    return found


def _check_shapes(rows: Ints, cols: Ints) -> None:
    try:
        np.broadcast_shapes(rows.shape, cols.shape)
    except ValueError:
        raise ArgumentError(
            f"row and col must broadcast, got shapes {rows.shape} and {cols.shape}"
        ) from None


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _log2(value: int) -> int:
    return value.bit_length() - 1
