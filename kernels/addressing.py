"""Plain addresses: what pointer kernels ask of sizes and strides, on the host and in a kernel."""

import math
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from autoswizzle.problem import ALIGNMENT

if TYPE_CHECKING:
    from torch import Tensor

INT32_MAX = 2**31 - 1


@triton.jit
def multiple_of(value, UNIT: tl.constexpr):
    """The value itself, written so that the compiler sees that UNIT divides it."""
    return value // UNIT * UNIT if UNIT > 1 else value


@triton.jit
def offsets(tile, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The BLOCK indices of a tile, in 64 bits if WIDE."""
    if WIDE:
        tile = tl.cast(tile, tl.int64)
    return tile * BLOCK + tl.arange(0, BLOCK)


def unit(size: int, itemsize: int) -> int:
    """The largest power of two that divides size, up to 16 bytes, the widest access. 1 where 16
    divides it: that the compiler knows by itself.
    """
    return 1 if size % 16 == 0 else math.gcd(size, ALIGNMENT // itemsize)


def last_offset(operand: "Tensor", rows: int, cols: int) -> int:
    """Elements from the operand's first to the last of rows x cols, present or not."""
    return (rows - 1) * operand.stride(0) + (cols - 1) * operand.stride(1)
