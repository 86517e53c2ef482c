"""The pointer family: loads through plain addresses, for operands of any strides and alignment."""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from autoswizzle.config import GemmConfig
from autoswizzle.kernels.addressing import addressed, multiple_of, offsets
from autoswizzle.kernels.family import Call, Scratch, compile_options
from autoswizzle.kernels.handover import hand_over, take_over
from autoswizzle.kernels.order import log_side, tile_at
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.problem import GemmProblem
from autoswizzle.space import grid

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit(do_not_specialize=["ticket"])
def pointer_gemm(
    a,
    b,
    out,
    counter,
    partials,
    flags,
    ticket,
    m,
    n,
    k,
    a_stride_m,
    a_stride_k,
    b_stride_k,
    b_stride_n,
    out_stride_m,
    out_stride_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWIZZLE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    LOG_SIDE: tl.constexpr,
    PERSISTENT: tl.constexpr,
    DYNAMIC: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    UNITS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """out[m, n] = a[m, k] @ b[k, n], accumulated in float32.

    PERSISTENT: a program owns every num_programs-th tile, or with DYNAMIC takes the next one from
    counter. SPLIT_K: programs of a tile, each for a part of its k steps; partials, flags, ticket:
    for their sums. EVEN_K: BLOCK_K divides k. WIDE: offsets need 64 bits. UNITS: what m to
    out_stride_n are multiples of, where the compiler does not see it. OVERLAPS: see
    Call.overlapping.
    """
    if OVERLAPS:
        let_the_next_launch_begin()
        wait_for_the_launch_before()
    m = multiple_of(m, UNITS[0])
    n = multiple_of(n, UNITS[1])
    k = multiple_of(k, UNITS[2])
    a_stride_m = multiple_of(a_stride_m, UNITS[3])
    a_stride_k = multiple_of(a_stride_k, UNITS[4])
    b_stride_k = multiple_of(b_stride_k, UNITS[5])
    b_stride_n = multiple_of(b_stride_n, UNITS[6])
    out_stride_m = multiple_of(out_stride_m, UNITS[7])
    out_stride_n = multiple_of(out_stride_n, UNITS[8])
    grid_m = tl.cdiv(m, BLOCK_M)
    grid_n = tl.cdiv(n, BLOCK_N)
    left = (partials, flags, ticket)
    tile = tl.program_id(0)
    if DYNAMIC:
        while tile < grid_m * grid_n:
            _tile_gemm(
                a, b, out, left, m, n, k, a_stride_m, a_stride_k, b_stride_k, b_stride_n,
                out_stride_m, out_stride_n, tile, grid_m, grid_n, BLOCK_M, BLOCK_N, BLOCK_K,
                SWIZZLE, GROUP_SIZE, LOG_SIDE, SPLIT_K, EVEN_K, WIDE, PRECISION,
            )  # fmt: skip
            tile = tl.num_programs(0) + tl.atomic_add(counter, 1)
    elif PERSISTENT:
        for tile in tl.range(tl.program_id(0), grid_m * grid_n, tl.num_programs(0)):
            _tile_gemm(
                a, b, out, left, m, n, k, a_stride_m, a_stride_k, b_stride_k, b_stride_n,
                out_stride_m, out_stride_n, tile, grid_m, grid_n, BLOCK_M, BLOCK_N, BLOCK_K,
                SWIZZLE, GROUP_SIZE, LOG_SIDE, SPLIT_K, EVEN_K, WIDE, PRECISION,
            )  # fmt: skip
    else:
        _tile_gemm(
            a, b, out, left, m, n, k, a_stride_m, a_stride_k, b_stride_k, b_stride_n, out_stride_m,
            out_stride_n, tile, grid_m, grid_n, BLOCK_M, BLOCK_N, BLOCK_K, SWIZZLE, GROUP_SIZE,
            LOG_SIDE, SPLIT_K, EVEN_K, WIDE, PRECISION,
        )  # fmt: skip


@triton.jit
def _tile_gemm(
    a,
    b,
    out,
    left,
    m,
    n,
    k,
    a_stride_m,
    a_stride_k,
    b_stride_k,
    b_stride_n,
    out_stride_m,
    out_stride_n,
    tile,
    grid_m,
    grid_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWIZZLE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    LOG_SIDE: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute and store one tile, whose number counts every part if SPLIT_K > 1.

    Rows and columns past the end wrap around for loading, so that only k needs a mask; nothing past
    k is loaded, whatever the memory there holds.
    """
    steps = tl.cdiv(k, BLOCK_K)
    part = tile % SPLIT_K
    first, end = steps * part // SPLIT_K, steps * (part + 1) // SPLIT_K
    tile_m, tile_n = tile_at(tile // SPLIT_K, grid_m, grid_n, SWIZZLE, GROUP_SIZE, LOG_SIDE)
    rows = offsets(tile_m, BLOCK_M, WIDE)
    cols = offsets(tile_n, BLOCK_N, WIDE)
    ks = offsets(first, BLOCK_K, WIDE)
    a_block = a + (rows % m)[:, None] * a_stride_m + ks[None, :] * a_stride_k
    b_block = b + ks[:, None] * b_stride_k + (cols % n)[None, :] * b_stride_n
    step = tl.full((), BLOCK_K, tl.int64 if WIDE else tl.int32)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(first, end):
        if EVEN_K:
            a_part = tl.load(a_block)
            b_part = tl.load(b_block)
        else:
            there = ks < k - (block - first) * BLOCK_K
            a_part = tl.load(a_block, mask=there[None, :], other=0.0)
            b_part = tl.load(b_block, mask=there[:, None], other=0.0)
        total = tl.dot(a_part, b_part, total, input_precision=PRECISION)
        a_block += step * a_stride_k
        b_block += step * b_stride_k
    if SPLIT_K > 1:
        total = _shared(total, left, tile, part, SPLIT_K)
    out_block = out + rows[:, None] * out_stride_m + cols[None, :] * out_stride_n
    if part == SPLIT_K - 1:
        there = (rows < m)[:, None] & (cols < n)[None, :]
        tl.store(out_block, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _shared(total, left, tile, part, SPLIT_K: tl.constexpr):
    """Leaves the sums of a part; of the last adds all others', in their order.

    It waits for lower programs only, which have started before it and wait for none.
    """
    partials, flags, ticket = left
    rows: tl.constexpr = total.shape[0]
    cols: tl.constexpr = total.shape[1]
    places = tl.arange(0, rows)[:, None] * cols + tl.arange(0, cols)[None, :]
    first = tile - part
    if part < SPLIT_K - 1:
        tl.store(partials + tl.cast(tile, tl.int64) * rows * cols + places, total)
        tl.debug_barrier()
        hand_over(flags + tile, ticket)
    else:
        for other in range(first, first + SPLIT_K - 1):
            take_over(flags + other, ticket)
            block = partials + tl.cast(other, tl.int64) * rows * cols
            total += tl.load(block + places, cache_modifier=".cg")
    return total


def call(config: GemmConfig, problem: GemmProblem, a: "Tensor", b: "Tensor", out: "Tensor") -> Call:
    """The launch of config on these operands, which may have any strides."""
    grid_m, grid_n = grid(config, problem)
    grid_k = -(-problem.k // config.block_k)
    parts = grid_m * grid_n * config.split_k if config.split_k > 1 else 0
    reached = grid_m * config.block_m, grid_n * config.block_n, grid_k * config.block_k
    args, constants = addressed(problem, (a, b, out), reached)
    return Call(
        kernel=pointer_gemm,
        args=args,
        constants={
            **constants,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "SWIZZLE": config.swizzle,
            "GROUP_SIZE": config.group_size,
            "LOG_SIDE": log_side(config.swizzle, grid_m, grid_n),
            "PERSISTENT": config.persistent,
            "DYNAMIC": config.scheduling == "dynamic",
            "SPLIT_K": config.split_k,
            "EVEN_K": problem.k % config.block_k == 0,
            "PRECISION": problem.precision,
            "OVERLAPS": False,
        },
        options=compile_options(config),
        tiles=grid_m * grid_n * config.split_k,
        persistent=config.persistent,
        overlaps=True,
        scratch=Scratch(
            counter=int(config.scheduling == "dynamic"),
            partials=parts * config.block_m * config.block_n,
            flags=parts,
        ),
    )
