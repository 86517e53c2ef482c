"""The gemv family: the few rows of a decode step, multiplied and added without tensor cores.

Reading b once is nearly all the work then. A program takes block_n columns of all rows; its threads
load runs of b, multiply them with the rows of a, and add up along k only at the end.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from autoswizzle.config import GemmConfig
from autoswizzle.kernels.addressing import addressed, multiple_of, offsets
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
    steps = -(-problem.k // config.block_k)
    reached = problem.m, programs * config.block_n, steps * config.block_k
    args, constants = addressed(problem, (a, b, out), reached)
    return Call(
        kernel=gemv,
        args=args,
        constants={
            **constants,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "EVEN_K": problem.k % config.block_k == 0,
            "OVERLAPS": False,
        },
        options=compile_options(config),
        tiles=programs,
        overlaps=True,
    )
