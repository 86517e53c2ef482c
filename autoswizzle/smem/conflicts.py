"""Bank conflicts of one warp-wide shared-memory instruction.

The model: 32 banks of 4 bytes; an instruction is split into transactions of at most 128 bytes, in
lane order (32 lanes of up to 4 bytes, 16 of 8, 8 of 16; each 8x8 matrix of an ldmatrix is one); a
transaction takes as many wavefronts as its busiest bank has distinct 4-byte words; lanes that share
a word share its wavefront. Source: CUDA C++ Best Practices Guide, "Shared Memory"; on an H200 the
counters of A and B reads are this model's to the last digit (wavefronts 8, 4, 2, 1 x ldmatrix).
ways is Gluon's compile-time bank_conflicts + 1, except for swizzles that move pieces smaller than a
word, where Gluon takes different halves of different words in one bank for conflict-free.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoswizzle.errors import ArgumentError, check_choice
from autoswizzle.smem.layout import LINE_BYTES, Layout
from autoswizzle.smem.swizzle import Ints, integer, integers

BANKS, BANK_BYTES = 32, 4
WARP = 32
_MATRICES = {"ldmatrix.x1": 1, "ldmatrix.x2": 2, "ldmatrix.x4": 4}
_LANE_BYTES = {
    f"{kind}.shared.b{8 * size}": size for kind in ("ld", "st") for size in (1, 2, 4, 8, 16)
}
INSTRUCTIONS = (*_MATRICES, *_LANE_BYTES)  # b8 to b128: 1 to 16 bytes a lane

Lanes = tuple[ArrayLike, ArrayLike]  # rows and cols of each lane's first element


@dataclass(frozen=True, slots=True)
class Conflicts:
    """What one instruction costs.

    transactions: 128-byte pieces, its wavefronts without any conflict. wavefronts: with conflicts.
    ways: wavefronts of the slowest transaction, 1 without conflict. apparent_ways: distinct words
    in the busiest bank over the whole warp, so without the split into transactions.
    """

    transactions: int
    wavefronts: int
    ways: int
    apparent_ways: int

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond one per transaction, what profilers count as bank conflicts."""
        return self.wavefronts - self.transactions


def bank_conflicts(
    layout: Layout | ArrayLike, instruction: str, lanes: Lanes | None = None
) -> Conflicts:
    """The bank conflicts of one instruction of INSTRUCTIONS by one warp.

    layout: a function (rows, cols) -> byte offsets, or the byte offset of each lane's access
    (ldmatrix: of each matrix row, 8 a matrix). lanes: (rows, cols) of each lane's first element,
    for a function only; default: for ldmatrix its 16-bit fragment at (0, 0) (ldmatrix_lanes).
    At most 32 lanes, aligned to the access. Raises ArgumentError naming the field.
    """
    offsets, size = _accesses(layout, instruction, lanes)
    load = _bank_words(offsets, size, LINE_BYTES // max(size, BANK_BYTES))
    whole = _bank_words(offsets, size, WARP)
    wavefronts = load.max(axis=1)
    return Conflicts(len(load), int(wavefronts.sum()), int(wavefronts.max()), int(whole.max()))


def bank_words(
    layout: Layout | ArrayLike, instruction: str, lanes: Lanes | None = None
) -> NDArray[np.int64]:
    """Distinct words in each bank, int64 (transactions, 32); arguments as of bank_conflicts."""
    offsets, size = _accesses(layout, instruction, lanes)
    return _bank_words(offsets, size, LINE_BYTES // max(size, BANK_BYTES))


def ldmatrix_lanes(matrices: int) -> tuple[Ints, Ints]:
    """Rows and cols (16-bit elements) of the matrix rows an ldmatrix reads at (0, 0).

    matrices 1: rows 0..7; 2: rows 0..15; 4: a 16 x 16 fragment, left half first.
    """
    if matrices not in (1, 2, 4):
        raise ArgumentError(f"matrices must be 1, 2 or 4, got {matrices!r}")
    lane = np.arange(8 * matrices)
    return lane % 16, lane // 16 * 8


def accumulator_lanes() -> tuple[Ints, Ints]:
    """Rows and cols of each lane's first element of an mma m16n8 result; it holds two in a row."""
    lane = np.arange(WARP)
    return lane // 4, lane % 4 * 2


def row_lanes(cols: int, vector: int) -> tuple[Ints, Ints]:
    """Rows and cols of lanes that walk rows of cols elements, vector elements a lane."""
    integer("vector", vector, least=1)
    if integer("cols", cols, least=1) % vector:
        raise ArgumentError(f"cols must be a multiple of vector = {vector}, got {cols}")
    start = np.arange(WARP) * vector
    return start // cols, start % cols


def _accesses(
    layout: Layout | ArrayLike, instruction: str, lanes: Lanes | None
) -> tuple[Ints, int]:
    """The byte offset of each access, and its bytes."""
    check_choice("instruction", instruction, INSTRUCTIONS)
    matrices = _MATRICES.get(instruction)
    size = 16 if matrices else _LANE_BYTES[instruction]
    if callable(layout):
        offsets: Any = layout(*_cells(instruction, matrices, lanes))
    elif lanes is not None:
        raise ArgumentError("lanes must be left out when layout is a list of offsets")
    else:
        offsets = layout
    offsets = integers("offsets", offsets)
    if offsets.ndim != 1:
        raise ArgumentError(f"offsets must have one dimension, got shape {offsets.shape}")
    _check_count(instruction, matrices, len(offsets))
    if (offsets % size).any():
        wrong = offsets[offsets % size != 0][0]
        raise ArgumentError(f"offsets must be multiples of {size} for {instruction}, got {wrong}")
    return offsets, size


def _cells(instruction: str, matrices: int | None, lanes: Lanes | None) -> tuple[Ints, Ints]:
    if lanes is None:
        if matrices is None:
            raise ArgumentError(f"lanes must be given for {instruction} on a layout function")
        return ldmatrix_lanes(matrices)
    if not isinstance(lanes, tuple) or len(lanes) != 2:
        raise ArgumentError(f"lanes must be a pair (rows, cols), got {lanes!r}")
    rows, cols = integers("rows", lanes[0]), integers("cols", lanes[1])
    if rows.shape != cols.shape:
        raise ArgumentError(f"rows and cols must match, got shapes {rows.shape} and {cols.shape}")
    return rows, cols


def _check_count(instruction: str, matrices: int | None, count: int) -> None:
    if matrices and count != 8 * matrices:
        raise ArgumentError(f"offsets must be {8 * matrices} for {instruction}, got {count}")
    if not 1 <= count <= WARP:
        raise ArgumentError(f"offsets must be 1 to {WARP} lanes, got {count}")


def _bank_words(offsets: Ints, size: int, lanes: int) -> NDArray[np.int64]:
    """Distinct words per bank of each group of `lanes` lanes."""
    words = offsets[:, None] // BANK_BYTES + np.arange(-(-size // BANK_BYTES))
    groups = -(-len(offsets) // lanes)
    counts = np.zeros((groups, BANKS), dtype=np.int64)
    for group in range(groups):
        banks = np.unique(words[group * lanes : (group + 1) * lanes]) % BANKS
        counts[group] = np.bincount(banks, minlength=BANKS)
    return counts
