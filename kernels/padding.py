"""Operands and results that TMA can't address: copied to rows padded to 16 bytes, and back.

TMA needs bases and outer strides that are multiples of 16 bytes, and a store that ends beyond n
still writes up to the next 16. Copies with such rows make the fast kernels usable at the price of
a pass over each matrix that needs one; what lies in the padding is never read.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from autoswizzle.kernels.family import Call
from autoswizzle.problem import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

BLOCK_ROWS = 8
BLOCK_COLS = 512


@triton.jit
def copy_rows(
    source,
    target,
    rows,
    cols,
    wide,
    source_row,
    source_col,
    target_row,
    target_col,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """target[rows, cols] = source[rows, cols], of any strides; wide: blocks beside each other."""
    tile = tl.program_id(0)
    row = (tile // wide).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = (tile % wide).to(tl.int64) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    there = (row < rows) & (col < cols)
    values = tl.load(source + row * source_row + col * source_col, mask=there)
    tl.store(target + row * target_row + col * target_col, values, mask=there)


def copy_call(source: "Tensor", target: "Tensor") -> Call:
    """The launch that copies a matrix, row by row."""
    rows, cols = source.shape
    wide = -(-cols // BLOCK_COLS)  # counted here: rounding cols up may leave the kernel's 32 bits
    return Call(
        kernel=copy_rows,
        args={
            "source": source,
            "target": target,
            "rows": rows,
            "cols": cols,
            "wide": wide,
            "source_row": source.stride(0),
            "source_col": source.stride(1),
            "target_row": target.stride(0),
            "target_col": target.stride(1),
        },
        constants={"BLOCK_ROWS": BLOCK_ROWS, "BLOCK_COLS": BLOCK_COLS},
        options={"num_warps": 4},
        tiles=-(-rows // BLOCK_ROWS) * wide,
    )


def addressable(operand: "Tensor", turned: bool, *, stored_to: bool = False) -> bool:
    """Whether TMA can read the operand, or its transpose if turned, and store to it."""
    stored = operand.t() if turned else operand
    (rows, cols), (outer, inner) = stored.shape, stored.stride()
    unit = ALIGNMENT // operand.element_size()
    return (
        operand.data_ptr() % ALIGNMENT == 0
        and (inner == 1 or cols == 1)
        and (rows == 1 or (outer >= cols and outer % unit == 0))
        and (cols % unit == 0 or not stored_to)
    )


def padded_like(operand: "Tensor", turned: bool) -> "Tensor":
    """Memory for a matrix like the operand, its rows (columns if turned) padded to 16 bytes."""
    rows, cols = operand.t().shape if turned else operand.shape
    unit = ALIGNMENT // operand.element_size()
    storage: Any = torch.empty(
        (rows, -(-cols // unit) * unit), dtype=operand.dtype, device=operand.device
    )
    padded: Tensor = storage[:, :cols]
    return padded.t() if turned else padded


def multiply_padded(
    layout: str,
    operands: "tuple[Tensor, Tensor, Tensor]",
    multiply: "Callable[[Tensor, Tensor, Tensor], object]",
    copy: "Callable[[Tensor, Tensor], object]",
) -> None:
    """multiply(a, b, out), each of which TMA can address: the operands, or padded copies.

    layout: of a and b. copy(source, target): both as they are stored, transposed if that is how.
    """
    a, b, out = operands
    ready: list[Tensor] = []
    for operand, letter in zip((a, b), layout, strict=True):
        turned = letter == "t"
        if addressable(operand, turned):
            ready.append(operand)
        else:
            padded = padded_like(operand, turned)
            if turned:
                copy(operand.t(), padded.t())
            else:
                copy(operand, padded)
            ready.append(padded)
    if addressable(out, turned=False, stored_to=True):
        multiply(ready[0], ready[1], out)
    else:
        product = padded_like(out, turned=False)
        multiply(ready[0], ready[1], product)
        copy(product, out)
