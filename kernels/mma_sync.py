"""The mma_sync family: mma.sync fed by ldmatrix, in Gluon, for sm_80 and later.

It shows what shared-memory layouts cost: the layouts of the A, B and C tiles are tunables of their
own (smem.tile_layout), and nothing else changes with them. A and B go by cp.async to a ring of
shared memory. Where padding takes part (any of smem_a, smem_b, smem_c is "padded") they go through
registers instead, whatever their own layouts, because cp.async can't write a padded tile. C is
staged in shared memory as float32, over the ring.

One difference is the compiler's: triton 3.6 and 3.9 read swizzled tiles with ldmatrix, padded ones
with ld.shared. That is 4 bytes a lane where k is contiguous, in as many wavefronts but four times
the instructions; where it is not, 2 bytes a lane.
"""

from typing import TYPE_CHECKING, Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import WARP_SIZE
from autoswizzle.kernels.family import Call, compile_options
from autoswizzle.kernels.gluon import barrier, cp_async
from autoswizzle.kernels.order import log_side, tile_at
from autoswizzle.kernels.units import UNIT, in_units, stride_in_units
from autoswizzle.problem import ALIGNMENT, INT32_MAX, GemmProblem
from autoswizzle.smem import tile_layout, warp_grid
from autoswizzle.space import grid

if TYPE_CHECKING:
    from torch import Tensor

_C_ITEMSIZE = 4  # bytes; C is staged as float32
_EXTENTS = ("m", "n", "k", "a_stride", "b_stride", "out_stride")


@gluon.jit(do_not_specialize=_EXTENTS)
def mma_sync_gemm(
    a,
    b,
    out,
    m,
    n,
    k,
    a_stride,
    b_stride,
    out_stride,
    M_UNIT: gl.constexpr,
    K_UNIT: gl.constexpr,
    UNIT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    A_BY_K: gl.constexpr,
    B_BY_K: gl.constexpr,
    A_COPY: gl.constexpr,
    B_COPY: gl.constexpr,
    C_COPY: gl.constexpr,
    A_RING: gl.constexpr,
    B_RING: gl.constexpr,
    A_SHARED: gl.constexpr,
    B_SHARED: gl.constexpr,
    C_SHARED: gl.constexpr,
    MMA: gl.constexpr,
    THROUGH_REGISTERS: gl.constexpr,
    SWIZZLE: gl.constexpr,
    GROUP_SIZE: gl.constexpr,
    LOG_SIDE: gl.constexpr,
    WIDE: gl.constexpr,
):
    """out[m, n] = a[m, k] @ b[k, n], accumulated in float32, one program a tile.

    Strides and the extents of contiguous dimensions come in units of UNIT elements, n always, m
    and k where their UNIT says so: this is how the compiler knows that every copy is aligned.
    A_BY_K, B_BY_K: k is the contiguous dimension. WIDE: offsets need 64 bits.
    """
    m *= M_UNIT
    n *= UNIT
    k *= K_UNIT
    tile_m, tile_n = tile_at(
        gl.program_id(0),
        gl.cdiv(m, BLOCK_M),
        gl.cdiv(n, BLOCK_N),
        SWIZZLE,
        GROUP_SIZE,
        LOG_SIDE,
    )
    row = tile_m * BLOCK_M
    col = tile_n * BLOCK_N
    if WIDE:
        row = row.to(gl.int64)
        col = col.to(gl.int64)
        a_stride = a_stride.to(gl.int64)
        b_stride = b_stride.to(gl.int64)
        out_stride = out_stride.to(gl.int64)
    a_stride *= UNIT
    b_stride *= UNIT
    out_stride *= UNIT
    a_from, a_ks = _addresses(a, a_stride, row, m, BLOCK_M, BLOCK_K, A_BY_K, A_COPY)
    b_from, b_ks = _addresses(b, b_stride, col, n, BLOCK_N, BLOCK_K, B_BY_K, B_COPY)
    a_step = BLOCK_K if A_BY_K else BLOCK_K * a_stride
    b_step = BLOCK_K if B_BY_K else BLOCK_K * b_stride
    a_s = gl.allocate_shared_memory(a.dtype.element_ty, A_RING, A_SHARED)
    b_s = gl.allocate_shared_memory(b.dtype.element_ty, B_RING, B_SHARED)

    left = k  # of the k steps whose copy has not started; beyond k, zeros are copied
    for stage in gl.static_range(STAGES - 1):
        if THROUGH_REGISTERS:
            a_s.index(stage).store(gl.load(a_from, mask=a_ks < left, other=0.0))
            b_s.index(stage).store(gl.load(b_from, mask=b_ks < left, other=0.0))
        else:
            cp_async(a_s.index(stage), a_from, mask=a_ks < left)
            cp_async(b_s.index(stage), b_from, mask=b_ks < left)
            async_copy.commit_group()
        a_from += a_step
        b_from += b_step
        left -= BLOCK_K

    total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, MMA)
    slot = 0
    for _ in range(gl.cdiv(k, BLOCK_K)):
        if not THROUGH_REGISTERS:
            async_copy.wait_group(STAGES - 2)
        barrier()  # slot is filled, and every warp has read the one before it
        free = STAGES - 1 if slot == 0 else slot - 1
        if THROUGH_REGISTERS:
            a_next = gl.load(a_from, mask=a_ks < left, other=0.0)
            b_next = gl.load(b_from, mask=b_ks < left, other=0.0)
            total = _multiply(a_s.index(slot), b_s.index(slot), total, A_BY_K, B_BY_K, MMA)
            a_s.index(free).store(a_next)
            b_s.index(free).store(b_next)
        else:
            cp_async(a_s.index(free), a_from, mask=a_ks < left)
            cp_async(b_s.index(free), b_from, mask=b_ks < left)
            async_copy.commit_group()
            total = _multiply(a_s.index(slot), b_s.index(slot), total, A_BY_K, B_BY_K, MMA)
        a_from += a_step
        b_from += b_step
        left -= BLOCK_K
        slot = 0 if slot == STAGES - 1 else slot + 1

    if not THROUGH_REGISTERS:
        async_copy.wait_group(0)
    barrier()  # the ring, which C overwrites, is neither written nor read any more
    c_s = gl.allocate_shared_memory(gl.float32, [BLOCK_M, BLOCK_N], C_SHARED)
    c_s.store(total)
    rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, C_COPY))[:, None]
    cols = col + gl.arange(0, BLOCK_N, gl.SliceLayout(0, C_COPY))[None, :]
    result = c_s.load(C_COPY).to(out.dtype.element_ty)
    gl.store(out + rows * out_stride + cols, result, mask=(rows < m) & (cols < n))


@gluon.jit
def _addresses(
    base,
    stride,
    first,
    extent,
    BLOCK: gl.constexpr,
    BLOCK_K: gl.constexpr,
    BY_K: gl.constexpr,
    COPY: gl.constexpr,
):
    """Addresses of an operand's first k step, as it lies in memory, and the k index of each.

    Rows (or columns) from first on; those past extent wrap around, so that only k needs a mask.
    """
    if BY_K:
        lines = ((first + gl.arange(0, BLOCK, gl.SliceLayout(1, COPY))) % extent)[:, None]
        inner = gl.arange(0, BLOCK_K, gl.SliceLayout(0, COPY))[None, :]
        ks = inner
    else:
        lines = gl.arange(0, BLOCK_K, gl.SliceLayout(1, COPY))[:, None]
        inner = ((first + gl.arange(0, BLOCK, gl.SliceLayout(0, COPY))) % extent)[None, :]
        ks = lines
    return base + lines * stride + inner, ks


@gluon.jit
def _multiply(a, b, total, A_BY_K: gl.constexpr, B_BY_K: gl.constexpr, MMA: gl.constexpr):
    """The total plus a @ b of one k step in shared memory."""
    if not A_BY_K:
        a = a.permute((1, 0))
    if B_BY_K:
        b = b.permute((1, 0))
    left = a.load(gl.DotOperandLayout(0, MMA, k_width=2))
    right = b.load(gl.DotOperandLayout(1, MMA, k_width=2))
    return mma_v2(left, right, total)


def call(config: GemmConfig, problem: GemmProblem, a: "Tensor", b: "Tensor", out: "Tensor") -> Call:
    """The launch of config on a (m, k), b (k, n), out (m, n).

    a and b stored as problem.layout says, out row-major; bases, strides and contiguous extents
    multiples of 16 bytes. Raises LaunchError otherwise.
    """
    block_m, block_n, block_k = config.block_m, config.block_n, config.block_k
    a_by_k, b_by_k = problem.layout[0] == "n", problem.layout[1] == "t"
    a_stride = stride_in_units(config.kernel, "a", a if a_by_k else a.t())
    b_stride = stride_in_units(config.kernel, "b", b.t() if b_by_k else b)
    out_stride = stride_in_units(config.kernel, "out", out)
    m_unit = 1 if a_by_k else UNIT
    k_unit = UNIT if a_by_k or b_by_k else 1
    a_tile = (block_m, block_k) if a_by_k else (block_k, block_m)
    b_tile = (block_n, block_k) if b_by_k else (block_k, block_n)
    grid_m, grid_n = grid(config, problem)
    warps = list(warp_grid(block_m, block_n, config.num_warps))
    return Call(
        kernel=mma_sync_gemm,
        args={
            "a": a,
            "b": b,
            "out": out,
            "m": in_units(config.kernel, "m", problem.m, m_unit),
            "n": in_units(config.kernel, "n", problem.n, UNIT),
            "k": in_units(config.kernel, "k", problem.k, k_unit),
            "a_stride": a_stride,
            "b_stride": b_stride,
            "out_stride": out_stride,
        },
        constants={
            "M_UNIT": m_unit,
            "K_UNIT": k_unit,
            "UNIT": UNIT,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "STAGES": config.num_stages,
            "A_BY_K": a_by_k,
            "B_BY_K": b_by_k,
            "A_COPY": _copy_layout(a_tile[1], problem.itemsize, config.num_warps),
            "B_COPY": _copy_layout(b_tile[1], problem.itemsize, config.num_warps),
            "C_COPY": _copy_layout(block_n, _C_ITEMSIZE, config.num_warps),
            "A_RING": (config.num_stages, *a_tile),
            "B_RING": (config.num_stages, *b_tile),
            "A_SHARED": shared_layout(config.smem_a, *a_tile, problem.itemsize),
            "B_SHARED": shared_layout(config.smem_b, *b_tile, problem.itemsize),
            "C_SHARED": shared_layout(config.smem_c, block_m, block_n, _C_ITEMSIZE),
            "MMA": gl.NVMMADistributedLayout([2, 0], warps, [16, 8]),
            "THROUGH_REGISTERS": through_registers(config),
            "SWIZZLE": config.swizzle,
            "GROUP_SIZE": config.group_size,
            "LOG_SIDE": log_side(config.swizzle, grid_m, grid_n),
            "WIDE": _reach(config, problem, a_stride, b_stride, out_stride) > INT32_MAX,
        },
        options=compile_options(config),
        tiles=grid_m * grid_n,
    )


def through_registers(config: GemmConfig) -> bool:
    """Whether A and B are copied through registers: padding takes part."""
    return "padded" in (config.smem_a, config.smem_b, config.smem_c)


def shared_layout(kind: str, rows: int, cols: int, itemsize: int) -> Any:  # noqa: ANN401
    """smem.tile_layout(kind, cols, itemsize) of a rows x cols tile, as Gluon writes it."""
    tile = tile_layout(kind, cols, itemsize)
    if tile.padding:
        pairs = [[cols, tile.padding // itemsize]]
        return gl.PaddedSharedLayout.with_identity_for(pairs, [rows, cols], [1, 0])
    phase_bytes = 1 << (tile.swizzle.base + tile.swizzle.shift)  # of rows that share an XOR
    return gl.SwizzledSharedLayout(
        vec=ALIGNMENT // itemsize,
        per_phase=max(1, phase_bytes // tile.row_bytes),
        max_phase=1 << tile.swizzle.bits,
        order=[1, 0],
    )


def _copy_layout(cols: int, itemsize: int, warps: int) -> gl.BlockedLayout:
    """16 bytes a thread, neighbouring threads along rows of cols elements."""
    vector = ALIGNMENT // itemsize
    across = min(cols // vector, WARP_SIZE)
    return gl.BlockedLayout([1, vector], [WARP_SIZE // across, across], [warps, 1], [1, 0])


def _reach(
    config: GemmConfig, problem: GemmProblem, a_stride: int, b_stride: int, out_stride: int
) -> int:
    """Upper bound of the element offsets and indices the kernel forms, lines times strides."""
    grid_m, grid_n = grid(config, problem)
    padded_k = problem.k + config.num_stages * config.block_k
    a_lines = problem.m if problem.layout[0] == "n" else padded_k
    b_lines = problem.n if problem.layout[1] == "t" else padded_k
    out_lines = grid_m * config.block_m
    inner = max(padded_k, out_lines, grid_n * config.block_n)
    return inner + UNIT * max(a_lines * a_stride, b_lines * b_stride, out_lines * out_stride)
