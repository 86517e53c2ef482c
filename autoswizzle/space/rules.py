"""Rules of legality: each says why a configuration can't run a problem on a GPU, or None.

Those that only wgmma and multicast have are in wgmma_rules.
"""

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ArgumentError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import ALIGNMENT, INT32_MAX, GemmProblem
from autoswizzle.smem import warp_grid
from autoswizzle.space.geometry import grid

MAX_REGISTERS = 255  # a thread can have
MAX_ACCUMULATORS = 256  # fp32 accumulators a thread can hold (255 registers a thread)
MAX_SPLIT_K = 32  # partial sums of a tile that its last program adds
MAX_SPLIT_ADDED = 64  # of a tile or a slice, beside their addresses: 128 spills, ptxas 12.8
MAX_SPLIT_WAVES = 8  # work items an SM, when k is split: a larger grid needs no split
MIN_GEMV_SUMS, MAX_GEMV_SUMS = 8, 64  # fp32 sums of a thread: one row's of 16 bytes; no spills
MAX_SKINNY_HELD = 208  # sums and loads of two k steps, in registers; more spill, ptxas 12.8
SECTOR_BYTES = 32  # that memory delivers at once, of which fewer would be wasted


def power_of_two_blocks(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Blocks are powers of two, as triton's tensors are."""
    for name in ("block_m", "block_n", "block_k"):
        value = getattr(config, name)
        if not 16 <= value <= 256 or value & (value - 1):
            return f"{name} must be a power of two in 16..256, got {value}"
    if config.num_warps not in (1, 2, 4, 8, 16):
        return f"num_warps must be 1, 2, 4, 8 or 16, got {config.num_warps}"
    return None


def stages(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """More k steps in flight than this fit on no SM."""
    if config.num_stages > 8:
        return f"num_stages must be in 1..8, got {config.num_stages}"
    return None


def accumulators(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """An output tile must fit the registers of its warps."""
    held = config.block_m * config.block_n // (32 * config.num_warps)
    if held > MAX_ACCUMULATORS:
        return (
            f"block_m x block_n must need <= {MAX_ACCUMULATORS} accumulators a thread, got {held}"
        )
    return None


def not_batched(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """The kernels multiply one pair of matrices."""
    return f"batch must be 1, got {problem.batch}" if problem.batch != 1 else None


def scheduling(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Only a program that loops over tiles can be handed the next one."""
    if config.scheduling == "dynamic" and not config.persistent:
        return "scheduling must be static without persistent, got dynamic"
    return None


def aligned(problem: GemmProblem) -> str | None:
    """Copies of 16 bytes need addresses that are multiples of 16."""
    if not problem.aligned:
        return f"needs operands aligned to {ALIGNMENT} bytes, got {problem}"
    return None


def addressable(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """What TMA can't address is copied to padded rows, and nothing else is."""
    if config.padded and problem.fits_tma:
        return f"padded must be false where TMA can address the operands, got true for {problem}"
    if config.padded or problem.fits_tma:
        return None
    unit = ALIGNMENT // problem.out_itemsize
    return (
        f"{config.kernel} needs operands aligned to {ALIGNMENT} bytes and n to be a multiple of "
        f"{unit}, or padded, got {problem}"
    )


def persistent(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """The kernel is written as a loop over tiles."""
    if not config.persistent:
        return f"{config.kernel} must be persistent, got persistent=False"
    return None


def tma_loops(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Only a loop over a range can be flattened; slices are powers of two, 16 columns or more."""
    if config.flatten and config.scheduling == "dynamic":
        return "flatten must be false with dynamic scheduling (no loop over a range), got true"
    widths = tuple(width for width in (1, 2, 4) if config.block_n // width >= 16)
    if config.epilogue_subtile not in widths:
        return (
            f"epilogue_subtile must be one of {', '.join(map(str, widths))} for block_n"
            f" {config.block_n}, got {config.epilogue_subtile}"
        )
    return None


def pointer_split(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """A tile's programs start one after the other, the last of which adds what the others left."""
    if config.split_k == 1:
        return None
    if config.persistent:
        return f"split_k must be 1 for persistent pointer kernels, got {config.split_k}"
    added = config.block_m * config.block_n // (32 * config.num_warps)
    return split_added(added) or split_parts(config, problem, gpu)


def split_added(sums: int) -> str | None:
    """A thread holds another part's sums beside its own."""
    if sums > MAX_SPLIT_ADDED:
        return f"a thread must add <= {MAX_SPLIT_ADDED} partial sums at once, got {sums}"
    return None


def split_parts(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Each part of a tile has a k step, and all partial sums fit in memory at once."""
    steps = -(-problem.k // config.block_k)
    if config.split_k > min(steps, MAX_SPLIT_K):
        return f"split_k must be in 1..{min(steps, MAX_SPLIT_K)}, got {config.split_k}"
    if steps * config.split_k > INT32_MAX:  # the device divides steps * part by split_k
        return f"k steps x split_k must be <= {INT32_MAX}, got {steps * config.split_k}"
    grid_m, grid_n = grid(config, problem)
    items, most = grid_m * grid_n * config.split_k, MAX_SPLIT_WAVES * gpu.num_sms
    if items > most:
        return f"tiles x split_k must be <= {most}, as their partial sums are kept, got {items}"
    return None


def mma_sync_operands(problem: GemmProblem) -> str | None:
    """Copies are of 16 bytes along contiguous dimensions, without a remainder."""
    names = {"n"} | ({"k"} if problem.layout != "tn" else set())
    names |= {"m"} if problem.layout[0] == "t" else set()
    unit = ALIGNMENT // problem.itemsize
    for name in sorted(names):
        if getattr(problem, name) % unit:
            return f"needs {name} to be a multiple of {unit}, got {getattr(problem, name)}"
    return None


def mma_sync_tile(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Warps share a tile in a grid."""
    if not 2 <= config.num_stages <= 8:
        return f"mma_sync needs num_stages in 2..8, got {config.num_stages}"
    if config.max_registers > MAX_REGISTERS:
        return f"max_registers must be in 0..{MAX_REGISTERS}, got {config.max_registers}"
    try:
        warp_grid(config.block_m, config.block_n, config.num_warps)
    except ArgumentError as error:
        return str(error)
    return None


def one_row(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Where one tile holds all rows, all orders are one."""
    if config.swizzle != "row":
        kernel = config.kernel
        return f"swizzle must be row for {kernel}, whose tiles lie in one row, got {config.swizzle}"
    return None


def gemv(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """One tile holds all rows, and each thread the sums of its own elements of b."""
    rows = 1 << (problem.m - 1).bit_length()
    if config.block_m != rows:
        return f"gemv needs block_m {rows} for m {problem.m}, got {config.block_m}"
    for name, value in (("block_n", config.block_n), ("block_k", config.block_k)):
        if not 1 <= value <= 4096 or value & (value - 1):
            return f"{name} must be a power of two in 1..4096, got {value}"
    if config.num_warps not in (1, 2, 4, 8, 16):
        return f"num_warps must be 1, 2, 4, 8 or 16, got {config.num_warps}"
    run = config.block_k if problem.layout[1] == "t" else config.block_n
    if run * problem.itemsize < SECTOR_BYTES:
        return f"gemv needs b in runs of >= {SECTOR_BYTES} bytes, got {run * problem.itemsize}"
    held = rows * config.block_n * config.block_k / (32 * config.num_warps)
    if not MIN_GEMV_SUMS <= held <= MAX_GEMV_SUMS:
        return f"gemv needs {MIN_GEMV_SUMS} to {MAX_GEMV_SUMS} sums a thread, got {held:g}"
    return None


def skinny_operands(problem: GemmProblem) -> str | None:
    """Loads are of 16 bytes along k, of both operands and without a remainder."""
    if problem.layout != "nt":
        return f"needs layout nt, got {problem.layout}"
    unit = ALIGNMENT // problem.itemsize
    return f"needs k to be a multiple of {unit}, got {problem.k}" if problem.k % unit else None


def skinny(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """One tile holds all rows; each warp multiplies its run of every k step, held in registers."""
    rows = max(8, 1 << (problem.m - 1).bit_length())
    if config.block_m != rows:
        return f"skinny needs block_m {rows} for m {problem.m}, got {config.block_m}"
    if config.num_warps not in (2, 4, 8):
        return f"skinny needs num_warps 2, 4 or 8, got {config.num_warps}"
    for name, value, least in (
        ("block_n", config.block_n, 16),  # the rows of an mma
        ("block_k", config.block_k, 64 * config.num_warps),  # 16 bytes a thread, for two mma's
    ):
        if value < least or value & (value - 1):
            return f"skinny needs {name} to be a power of two >= {least}, got {value}"
    loaded = (rows + config.block_n) * config.block_k // (64 * config.num_warps)
    held = 2 * loaded + rows * config.block_n // 32
    if held > MAX_SKINNY_HELD:
        return f"skinny needs <= {MAX_SKINNY_HELD} registers for loads and sums, got {held}"
    return None


TILE_RULES = (power_of_two_blocks, stages, accumulators, not_batched, scheduling)
