"""Plain addresses: what pointer kernels ask of sizes and strides, on the host and in a kernel."""

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from autoswizzle.problem import ALIGNMENT, INT32_MAX, GemmProblem

if TYPE_CHECKING:
    from torch import Tensor


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


def addressed(
    problem: GemmProblem,
    operands: "tuple[Tensor, Tensor, Tensor]",
    reached: tuple[int, int, int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arguments, constexprs) of a kernel that gets a, b and out as addresses, by parameter.

    reached: the (m, n, k) up to which it forms addresses, past the extents or not. WIDE: offsets
    need 64 bits. UNITS: what m to out_stride_n are multiples of, if the compiler can't see it.
    """
    a, b, out = operands
    m, n, k = reached
    sizes = {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "a_stride_m": a.stride(0),
        "a_stride_k": a.stride(1),
        "b_stride_k": b.stride(0),
        "b_stride_n": b.stride(1),
        "out_stride_m": out.stride(0),
        "out_stride_n": out.stride(1),
    }
    farthest = max(m + n + k, _last_offset(a, m, k), _last_offset(b, k, n), _last_offset(out, m, n))
    constants = {
        "WIDE": farthest > INT32_MAX,
        "UNITS": tuple(_unit(size, problem.itemsize) for size in sizes.values()),
    }
    return {"a": a, "b": b, "out": out, **sizes}, constants


def _unit(size: int, itemsize: int) -> int:
    """The largest power of two that divides size, up to 16 bytes, the widest access. 1 where 16
    divides it: that the compiler knows by itself.
    """
    return 1 if size % 16 == 0 else math.gcd(size, ALIGNMENT // itemsize)


def _last_offset(operand: "Tensor", rows: int, cols: int) -> int:
    """Elements from the operand's first to the last of rows x cols, present or not."""
    return (rows - 1) * operand.stride(0) + (cols - 1) * operand.stride(1)
