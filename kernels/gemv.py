"""The gemv family: the few rows of a decode step, multiplied and added without tensor cores.

Reading b once is nearly all the work then. A program takes block_n columns of all rows; its threads
load runs of b, multiply them with the rows of a, and add up along k only at the end.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from autoswizzle.config import GemmConfig
from autoswizzle.kernels.addressing import INT32_MAX, last_offset, multiple_of, offsets, unit
from autoswizzle.kernels.family import Call, compile_options
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.problem import GemmProblem
from autoswizzle.space import grid

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def gemv(
    a, b, out, m, n, k, a_stride_m, a_stride_k, b_stride_k, b_stride_n, out_stride_m, out_stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    WIDE: tl.constexpr, UNITS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[m, n] = a[m, k] @ b[k, n] for m <= BLOCK_M, accumulated in float32.

    EVEN_K: BLOCK_K divides k. WIDE: offsets need 64 bits. UNITS: what m to out_stride_n are
    multiples of, where the compiler does not see it. OVERLAPS: see Call.overlapping.
    """
    if OVERLAPS:
        let_the_next_launch_begin()
        wait_for_the_launch_before()
    n = multiple_of(n, UNITS[1])
    k = multiple_of(k, UNITS[2])
    a_stride_m = multiple_of(a_stride_m, UNITS[3])
    a_stride_k = multiple_of(a_stride_k, UNITS[4])
    b_stride_k = multiple_of(b_stride_k, UNITS[5])
    b_stride_n = multiple_of(b_stride_n, UNITS[6])
    out_stride_m = multiple_of(out_stride_m, UNITS[7])
    out_stride_n = multiple_of(out_stride_n, UNITS[8])
    if WIDE:
        a_stride_m = tl.cast(a_stride_m, tl.int64)
        out_stride_m = tl.cast(out_stride_m, tl.int64)
    cols = offsets(tl.program_id(0), BLOCK_N, WIDE)
    ks = offsets(0, BLOCK_K, WIDE)
    a_block = a + ks * a_stride_k
    b_block = b + (cols % n)[:, None] * b_stride_n + ks[None, :] * b_stride_k
    step = tl.full((), BLOCK_K, tl.int64 if WIDE else tl.int32)
    sums = ()
    for _row in tl.static_range(BLOCK_M):
        sums += (tl.zeros((BLOCK_N, BLOCK_K), tl.float32),)
    for block in range(tl.cdiv(k, BLOCK_K)):
        there = ks < k - block * BLOCK_K
        if EVEN_K:
            b_part = tl.load(b_block).to(tl.float32)
        else:
            b_part = tl.load(b_block, mask=there[None, :], other=0.0).to(tl.float32)
        grown = ()
        for row in tl.static_range(BLOCK_M):
            a_row = a_block + tl.minimum(row, m - 1) * a_stride_m
            if EVEN_K:
                a_part = tl.load(a_row).to(tl.float32)
            else:
                a_part = tl.load(a_row, mask=there, other=0.0).to(tl.float32)
            grown += (sums[row] + a_part[None, :] * b_part,)
        sums = grown
        a_block += step * a_stride_k
        b_block += step * b_stride_k
    for row in tl.static_range(BLOCK_M):
        total = tl.sum(sums[row], axis=1)
        out_row = out + row * out_stride_m + cols * out_stride_n
        if row < m:
            tl.store(out_row, total.to(out.dtype.element_ty), mask=cols < n)


def call(config: GemmConfig, problem: GemmProblem, a: "Tensor", b: "Tensor", out: "Tensor") -> Call:
    """The launch of config on these operands, which may have any strides."""
    _, programs = grid(config, problem)
    padded_n = programs * config.block_n
    padded_k = -(-problem.k // config.block_k) * config.block_k
    reach = max(
        padded_n + padded_k,
        last_offset(a, problem.m, padded_k),
        last_offset(b, padded_k, padded_n),
        last_offset(out, problem.m, padded_n),
    )
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
    return Call(
        kernel=gemv,
        args={"a": a, "b": b, "out": out, **sizes},
        constants={
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "EVEN_K": problem.k % config.block_k == 0,
            "WIDE": reach > INT32_MAX,
            "UNITS": tuple(unit(size, problem.itemsize) for size in sizes.values()),
            "OVERLAPS": False,
        },
        options=compile_options(config),
        tiles=programs,
        overlaps=True,
    )
