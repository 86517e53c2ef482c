"""The tma family: persistent programs that copy tiles by tensor maps (sm_90 and newer)."""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.kernels.family import Call, Scratch, compile_options
from autoswizzle.kernels.order import log_side, tile_at
from autoswizzle.kernels.overlap import let_the_next_launch_begin, wait_for_the_launch_before
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.space import grid

if TYPE_CHECKING:
    from torch import Tensor
    from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def tma_gemm(
    a,
    b,
    out,
    counter,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWIZZLE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    LOG_SIDE: tl.constexpr,
    A_TURNED: tl.constexpr,
    B_TURNED: tl.constexpr,
    DYNAMIC: tl.constexpr,
    FLATTEN: tl.constexpr,
    SUBTILE: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """out[m, n] = a[m, k] @ b[k, n], accumulated in float32, through tensor descriptors.

    A_TURNED, B_TURNED: the descriptor is of the transposed operand. DYNAMIC: a program takes its
    next tile from counter, else it owns every num_programs-th. FLATTEN: the tile and k loops become
    one. SUBTILE: the tile is stored in so many column slices. OVERLAPS: see Call.overlapping.
    """
    if OVERLAPS:
        let_the_next_launch_begin()
        wait_for_the_launch_before()
    grid_m = tl.cdiv(m, BLOCK_M)
    grid_n = tl.cdiv(n, BLOCK_N)
    if DYNAMIC:
        tile = tl.program_id(0)
        while tile < grid_m * grid_n:
            _tile_gemm(
                a, b, out, k, tile, grid_m, grid_n, BLOCK_M, BLOCK_N, BLOCK_K, SWIZZLE,
                GROUP_SIZE, LOG_SIDE, A_TURNED, B_TURNED, SUBTILE, PRECISION,
            )  # fmt: skip
            tile = tl.num_programs(0) + tl.atomic_add(counter, 1)
    else:
        for tile in tl.range(
            tl.program_id(0), grid_m * grid_n, tl.num_programs(0), flatten=FLATTEN
        ):
            _tile_gemm(
                a, b, out, k, tile, grid_m, grid_n, BLOCK_M, BLOCK_N, BLOCK_K, SWIZZLE,
                GROUP_SIZE, LOG_SIDE, A_TURNED, B_TURNED, SUBTILE, PRECISION,
            )  # fmt: skip


@triton.jit
def _tile_gemm(
    a,
    b,
    out,
    k,
    tile,
    grid_m,
    grid_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWIZZLE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    LOG_SIDE: tl.constexpr,
    A_TURNED: tl.constexpr,
    B_TURNED: tl.constexpr,
    SUBTILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute and store one tile; the descriptors' bounds zero what lies past the extents."""
    tile_m, tile_n = tile_at(tile, grid_m, grid_n, SWIZZLE, GROUP_SIZE, LOG_SIDE)
    row = tile_m * BLOCK_M
    col = tile_n * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(tl.cdiv(k, BLOCK_K)):
        first_k = block * BLOCK_K
        a_part = a.load([first_k, row]).T if A_TURNED else a.load([row, first_k])
        b_part = b.load([col, first_k]).T if B_TURNED else b.load([first_k, col])
        total = tl.dot(a_part, b_part, total, input_precision=PRECISION)
    _store(out, total, row, col, BLOCK_M, BLOCK_N, SUBTILE)


@triton.jit
def _store(
    out, total, row, col, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SUBTILE: tl.constexpr
):
    """Store a tile in SUBTILE column slices: halves, halved again. Smaller slices need less shared
    memory, which leaves more for stages.
    """
    if SUBTILE == 1:
        out.store([row, col], total.to(out.dtype))
    else:
        HALF: tl.constexpr = BLOCK_N // 2
        halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, HALF)), (0, 2, 1))
        left, right = tl.split(halves)
        _store(out, left, row, col, BLOCK_M, HALF, SUBTILE // 2)
        _store(out, right, row, col + HALF, BLOCK_M, HALF, SUBTILE // 2)


def call(config: GemmConfig, problem: GemmProblem, a: "Tensor", b: "Tensor", out: "Tensor") -> Call:
    """The launch of config on these operands; raises LaunchError when TMA can't address one."""
    grid_m, grid_n = grid(config, problem)
    a_turned, b_turned = (letter == "t" for letter in problem.layout)
    dynamic = config.scheduling == "dynamic"
    return Call(
        kernel=tma_gemm,
        args={
            "a": descriptor("a", a, config.block_m, config.block_k, a_turned),
            "b": descriptor("b", b, config.block_k, config.block_n, b_turned),
            "out": descriptor(
                "out", out, config.block_m, config.block_n // config.epilogue_subtile, False
            ),
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
        },
        constants={
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "SWIZZLE": config.swizzle,
            "GROUP_SIZE": config.group_size,
            "LOG_SIDE": log_side(config.swizzle, grid_m, grid_n),
            "A_TURNED": a_turned,
            "B_TURNED": b_turned,
            "DYNAMIC": dynamic,
            "FLATTEN": config.flatten,
            "SUBTILE": config.epilogue_subtile,
            "PRECISION": problem.precision,
            "OVERLAPS": False,
        },
        options=compile_options(config),
        tiles=grid_m * grid_n,
        persistent=True,
        overlaps=True,
        scratch=Scratch(counter=int(dynamic)),
    )


def descriptor(
    name: str, operand: "Tensor", block_rows: int, block_cols: int, turned: bool
) -> "TensorDescriptor":
    """A host descriptor of the operand, or of its transpose if turned, without copying it.

    Raises LaunchError unless its base and outer stride are multiples of 16 bytes and its inner
    stride is 1; the stride along an extent of 1 does not count.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    rows, cols, (outer, inner) = tma_view(name, operand, turned)
    block = [block_cols, block_rows] if turned else [block_rows, block_cols]
    return TensorDescriptor(operand, [rows, cols], [outer, inner], block)


def tma_view(name: str, operand: "Tensor", turned: bool) -> tuple[int, int, tuple[int, int]]:
    """Rows, columns and strides for a tensor map of the operand, or of its transpose if turned."""
    stored = operand.t() if turned else operand
    rows, cols = stored.shape
    unit = ALIGNMENT // operand.element_size()
    outer = stored.stride(0) if rows > 1 else -(-cols // unit) * unit
    inner = stored.stride(1) if cols > 1 else 1
    if inner != 1 or outer < cols or outer % unit or operand.data_ptr() % ALIGNMENT:
        raise LaunchError(
            f"{name} must have a base and an outer stride that are multiples of {ALIGNMENT} bytes"
            f" and an inner stride of 1 for TMA, got offset {operand.storage_offset()} and"
            f" strides {tuple(operand.stride())} of {operand.dtype}"
        )
    return rows, cols, (outer, inner)
