"""The skinny family: few rows on tensor cores that are fed from registers, in Gluon, b along k.

Reading b once is nearly all the work then, so the structure is gemv's: no shared memory and no
barrier in the loop. mma.sync takes 16 columns of b as its rows, and 8 rows of a as its columns. Of
each k step every warp multiplies a run of its own, and the warps add up only at the end.

An mma may take the k's of a run in any order that is the same for a and b: with a k_width of 8 each
thread has 8 neighbours, and loads their 16 bytes straight into its fragments. Loads run one step
ahead: of a step multiplied at once ptxas starts about six, as many as scoreboards, and waits.
"""

from typing import TYPE_CHECKING

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import WARP_SIZE
from autoswizzle.kernels.family import Call, compile_options
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.kernels.units import UNIT, in_units, stride_in_units
from autoswizzle.problem import GemmProblem
from autoswizzle.space import MAX_REGISTERS, grid

if TYPE_CHECKING:
    from torch import Tensor


@gluon.jit(do_not_specialize=("m", "n", "k", "a_stride", "b_stride", "out_stride"))
def skinny(
    a, b, out, m, n, k, a_stride, b_stride, out_stride,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, WARPS: gl.constexpr,
    ADDED: gl.constexpr, UNIT: gl.constexpr, EVEN_K: gl.constexpr, OVERLAPS: gl.constexpr,
):  # fmt: skip
    """out[m, n] = a[m, k] @ b[k, n] for m <= BLOCK_M, b stored transposed, accumulated in float32.

    k and strides come in units of UNIT elements: this is how the compiler knows that every load is
    aligned. ADDED: the layout in which the warps' sums are added. EVEN_K: BLOCK_K divides k.
    OVERLAPS: see Call.overlapping.
    """
    if OVERLAPS:
        let_the_next_launch_begin()
        wait_for_the_launch_before()
    RUN: gl.constexpr = BLOCK_K // WARPS  # k's of a step that a warp multiplies
    # One mma a warp, of (warp, n, k) and (warp, k, m) to (warp, n, m).
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, k_width=UNIT)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, k_width=UNIT)
    left = k * UNIT  # of k, from the step on that is loaded
    first = gl.program_id(0) * BLOCK_N
    # Columns of b past n and rows of a past m wrap around, so that only k needs a mask.
    b_cols = (first + _indices(BLOCK_N, 1, LEFT)) % n
    a_rows = _indices(BLOCK_M, 2, RIGHT) % m
    b_ks = _indices(WARPS, 0, LEFT) * RUN + _indices(RUN, 2, LEFT)
    a_ks = _indices(WARPS, 0, RIGHT) * RUN + _indices(RUN, 1, RIGHT)
    b_from = b + b_cols.to(gl.int64) * b_stride * UNIT + b_ks
    a_from = a + a_rows.to(gl.int64) * a_stride * UNIT + a_ks
    sums = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, SUMS)
    b_next, a_next = _load(b_from, a_from, b_ks, a_ks, left, EVEN_K)
    for _ in range(1, gl.cdiv(left, BLOCK_K)):
        b_part, a_part = b_next, a_next
        b_from += BLOCK_K
        a_from += BLOCK_K
        left -= BLOCK_K
        b_next, a_next = _load(b_from, a_from, b_ks, a_ks, left, EVEN_K)
        sums = mma_v2(b_part, a_part, sums)
    sums = mma_v2(b_next, a_next, sums)
    total = gl.sum(gl.convert_layout(sums, ADDED), axis=0)
    cols = first + gl.arange(0, BLOCK_N, gl.SliceLayout(1, total.type.layout))[:, None]
    rows = gl.arange(0, BLOCK_M, gl.SliceLayout(0, total.type.layout))[None, :]
    out_at = out + rows.to(gl.int64) * out_stride * UNIT + cols
    gl.store(out_at, total.to(out.dtype.element_ty), mask=(rows < m) & (cols < n))


@gluon.jit
def _load(b_from, a_from, b_ks, a_ks, left, EVEN_K: gl.constexpr):
    """A step of b and of a, zeros where k ends. b, read once, is kept from pushing a out of L1."""
    if EVEN_K:
        b_part = gl.load(b_from, cache_modifier=".cg")
        a_part = gl.load(a_from)
    else:
        b_part = gl.load(b_from, mask=b_ks < left, other=0.0, cache_modifier=".cg")
        a_part = gl.load(a_from, mask=a_ks < left, other=0.0)
    return b_part, a_part


@gluon.jit
def _indices(SIZE: gl.constexpr, AXIS: gl.constexpr, LAYOUT: gl.constexpr):
    """0 to SIZE - 1 along an axis of a tensor of rank 3."""
    if AXIS == 0:
        return gl.arange(0, SIZE, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    elif AXIS == 1:  # noqa: RET505  # the compiler wants one return or the other
        return gl.arange(0, SIZE, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    else:
        return gl.arange(0, SIZE, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]


def call(config: GemmConfig, problem: GemmProblem, a: "Tensor", b: "Tensor", out: "Tensor") -> Call:
    """The launch of config on a (m, k), b (k, n) stored transposed, out (m, n).

    Bases, row strides and k multiples of 16 bytes. Raises LaunchError otherwise.
    """
    _, programs = grid(config, problem)
    wide = min(config.block_n, WARP_SIZE)
    deep = WARP_SIZE // wide
    return Call(
        kernel=skinny,
        args={
            "a": a,
            "b": b,
            "out": out,
            "m": problem.m,
            "n": problem.n,
            "k": in_units(config.kernel, "k", problem.k, UNIT),
            "a_stride": stride_in_units(config.kernel, "a", a),
            "b_stride": stride_in_units(config.kernel, "b", b.t()),
            "out_stride": stride_in_units(config.kernel, "out", out),
        },
        constants={
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "WARPS": config.num_warps,
            # all warps' sums of an element in one thread, neighbours along a row of out
            "ADDED": gl.BlockedLayout(
                [config.num_warps, 1, 1], [1, wide, deep], [1, 1, config.num_warps], [0, 1, 2]
            ),
            "UNIT": UNIT,
            "EVEN_K": problem.k % config.block_k == 0,
            "OVERLAPS": False,
        },
        # told no number, ptxas 12.9 spills loads to have fewer registers, and more blocks on an SM
        options={**compile_options(config), "maxnreg": MAX_REGISTERS},
        tiles=programs,
        overlaps=True,
    )
