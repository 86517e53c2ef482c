"""Rules of legality: each says why a configuration can't run a problem on a GPU, or None."""

import math

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ArgumentError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import ALIGNMENT, INT32_MAX, GemmProblem
from autoswizzle.smem import warp_grid

MAX_REGISTERS = 255  # a thread can have
MAX_ACCUMULATORS = 256  # fp32 accumulators a thread can hold (255 registers a thread)
# Slices that a wgmma tile is stored in, by its columns (wgmma_tile).
SLICES = {
    32: (1, 2), 64: (1, 2, 4), 96: (3, 6), 128: (1, 2, 4, 8), 160: (5, 10), 192: (3, 6),
    256: (1, 2, 4, 8),
}  # fmt: skip
MAX_SPLIT_K = 32  # partial sums of a tile that its last program adds
MAX_SPLIT_ADDED = 64  # of a tile or a slice, beside their addresses: 128 spills, ptxas 12.8
# Tiles of the last wave, and the SMs that share them: 1/8 to 4/5 of a wave.
TAIL_SHARES = tuple(
    (tiles, parts)
    for tiles in range(1, 5)
    for parts in range(tiles + 1, 9)
    if math.gcd(tiles, parts) == 1
)
ADDED_STEPS = 4  # k steps as long as writing or adding a tile's partial sums takes (about 4 us)
MIN_GEMV_SUMS, MAX_GEMV_SUMS = 8, 64  # fp32 sums of a thread: one row's of 16 bytes; no spills
MAX_SKINNY_HELD = 208  # sums and loads of two k steps, in registers; more spill, ptxas 12.8
SECTOR_BYTES = 32  # that memory delivers at once, of which fewer would be wasted
MAX_SPLIT_WAVES = 8  # work items an SM, when k is split: a larger grid needs no split


def grid(config: GemmConfig, problem: GemmProblem) -> tuple[int, int]:
    """Tiles along m and along n: a cluster's are one, as it takes them together."""
    rows, columns = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    return -(-problem.m // rows), -(-problem.n // columns)


def cluster_size(config: GemmConfig) -> int:
    """Blocks of a cluster, which is one program."""
    return config.cluster_m * config.cluster_n


def multiplied(config: GemmConfig) -> tuple[int, int]:
    """Rows and columns of a tile as wgmma multiplies it: of swap_ab, the tile's transpose."""
    tile = config.block_m, config.block_n
    return tile[::-1] if config.swap_ab else tile


def pieces(config: GemmConfig) -> tuple[int, ...]:
    """Powers of two that the columns of a wgmma tile are made of, the wider first: the products of
    a k step. Three consumers have registers for 128 columns at once.
    """
    _, columns = multiplied(config)
    first = min(128 if consumers(config) == 3 else 256, 1 << (columns.bit_length() - 1))
    return (first,) if first == columns else (first, columns - first)


def consumers(config: GemmConfig) -> int:
    """Groups of num_warps warps that multiply in a wgmma kernel, sharing a tile or by turns."""
    if config.warp_specialize == "cooperative" and config.num_warps == 4:
        return 3 if config.block_m == 192 else 2
    return 2 if config.warp_specialize == "pingpong" else 1


def row_strips(config: GemmConfig) -> int:
    """Strips of 64 rows that one consumer of a wgmma kernel makes 192 rows of, else 1."""
    rows, _ = multiplied(config)
    return 3 if rows == 192 and config.warp_specialize == "pingpong" else 1


def tail(config: GemmConfig, problem: GemmProblem, num_sms: int) -> tuple[int, int, int]:
    """How stream_k divides the tiles: (tiles of whole waves, then how many among how many SMs).

    Every few tiles of the last, partial wave are shared by a few SMs more, each with an equal part
    of their k steps: the same parts in every group, so that the groups still meet in the L2. The
    choice is the one whose longest part and partial sums take the fewest k steps; (tiles, 1, 1)
    where sharing saves nothing.
    """
    grid_m, grid_n = grid(config, problem)
    rest = grid_m * grid_n % num_sms
    steps = -(-problem.k // config.block_k)

    def cost(shared: tuple[int, int]) -> int:
        tiles, parts = shared
        return -(-tiles * steps // parts) + ADDED_STEPS * -(-parts // tiles)

    fits = [
        (tiles, parts)
        for tiles, parts in TAIL_SHARES
        if -(-rest // tiles) * parts <= num_sms and parts <= tiles * steps
    ]
    best = min(fits, key=cost, default=(1, 1))
    if rest == 0 or cost(best) >= steps:
        return grid_m * grid_n, 1, 1
    return grid_m * grid_n - rest, *best


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


def multicast(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Two blocks, side by side or one below the other, share the operand that both read."""
    if (config.cluster_m, config.cluster_n) not in ((1, 2), (2, 1)):
        found = f"{config.cluster_m}x{config.cluster_n}"
        return f"{config.kernel} needs cluster_m x cluster_n 1x2 or 2x1, got {found}"
    if config.warp_specialize == "none":
        return f"{config.kernel} needs warp_specialize cooperative or pingpong, got none"
    if gpu.num_sms < cluster_size(config):
        return f"{config.kernel} needs an SM for each block of a cluster, got {gpu.num_sms}"
    return None


def wgmma_operands(problem: GemmProblem) -> str | None:
    """The hardware reads a 16-bit operand from shared memory either way, a 32-bit one along k."""
    if problem.dtype == "fp32" and problem.precision != "tf32":
        return f"needs precision tf32 for fp32, got {problem.precision}"
    if problem.dtype == "fp32" and problem.layout != "nt":
        return f"needs layout nt for tf32, got {problem.layout}"
    return None


def wgmma_step(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """A k step is one or two rows of the widest shared-memory swizzle."""
    if config.block_k * problem.itemsize not in (128, 256):
        wanted = f"{128 // problem.itemsize} or {256 // problem.itemsize}"
        return f"{config.kernel} needs block_k {wanted} for {problem.dtype}, got {config.block_k}"
    return None


def wgmma_tile(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """96, 160 or 192 columns are made of 64 or 128 and the rest, 256 for three consumers of twice
    128; slices must not straddle the two.
    """
    down, across = ("block_n", "block_m") if config.swap_ab else ("block_m", "block_n")
    rows, columns = multiplied(config)
    if rows not in (64, 128, 192, 256):
        return f"{config.kernel} needs {down} 64, 128, 192 or 256, got {rows}"
    if columns not in SLICES:
        return f"{config.kernel} needs {across} in {', '.join(map(str, SLICES))}, got {columns}"
    least = pieces(config)[-1]
    slices = tuple(n for n in SLICES[columns] if least % (columns // n) == 0)
    if config.epilogue_subtile not in slices:
        return (
            f"{config.kernel} needs epilogue_subtile in {slices} for {across} {columns}, got "
            f"{config.epilogue_subtile}"
        )
    if not 2 <= config.num_stages <= 8:
        return f"{config.kernel} needs num_stages in 2..8, got {config.num_stages}"
    return None


def wgmma_swap(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Tiles 192 columns wide have no narrow products when their transpose is multiplied; of other
    widths, those of the transposed problem do the same.
    """
    if not config.swap_ab:
        return None
    if (config.block_n, config.warp_specialize) != (192, "pingpong"):
        return (
            f"{config.kernel} needs block_n 192 and warp_specialize pingpong for swap_ab, got "
            f"{config.block_n} and {config.warp_specialize}"
        )
    if problem.itemsize != 2:
        return f"{config.kernel} needs a dtype of 16 bits for swap_ab, got {problem.dtype}"
    return None


def pointer_split(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """A tile's programs start one after the other, the last of which adds what the others left."""
    if config.split_k == 1:
        return None
    if config.persistent:
        return f"split_k must be 1 for persistent pointer kernels, got {config.split_k}"
    added = config.block_m * config.block_n // (32 * config.num_warps)
    return _added(added) or _parts(config, problem, gpu)


def _added(sums: int) -> str | None:
    """A thread holds another part's sums beside its own."""
    if sums > MAX_SPLIT_ADDED:
        return f"a thread must add <= {MAX_SPLIT_ADDED} partial sums at once, got {sums}"
    return None


def _parts(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
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


def wgmma_split(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Partial sums are kept for every part of a tile but the last, which adds them."""
    if config.split_k == 1 and not config.stream_k:
        return None
    if config.warp_specialize == "none":
        return "wgmma needs warp_specialize cooperative or pingpong to split k, got none"
    threads = 32 * config.num_warps * consumers(config)
    added = config.block_m * config.block_n // config.epilogue_subtile // threads
    if reason := _added(added):
        return reason
    if config.stream_k:
        if config.split_k != 1:
            return f"split_k must be 1 with stream_k, got {config.split_k}"
        if config.scheduling != "static":
            return f"scheduling must be static with stream_k, got {config.scheduling}"
        if tail(config, problem, gpu.num_sms)[2] == 1:
            return "stream_k must have a partial last wave that gets shorter, got none"
        return None
    if config.warp_specialize != "cooperative":
        return f"wgmma needs warp_specialize cooperative for split_k, got {config.warp_specialize}"
    return _parts(config, problem, gpu)


def wgmma_warps(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """num_warps are those of one consumer: two halves of a tile, two tiles, or one of a tile."""
    if config.num_warps not in (4, 8):
        return f"{config.kernel} needs num_warps 4 or 8, got {config.num_warps}"
    if config.warp_specialize == "pingpong" and config.num_warps != 4:
        return f"{config.kernel} needs num_warps 4 for pingpong, got {config.num_warps}"
    height, width = multiplied(config)
    if height == 192 and (config.num_warps != 4 or config.warp_specialize == "none"):
        return (
            f"{config.kernel} needs num_warps 4 and warp_specialize cooperative or pingpong for "
            f"{'block_n' if config.swap_ab else 'block_m'} 192, got {config.num_warps} and "
            f"{config.warp_specialize}"
        )
    shares = consumers(config) if config.warp_specialize == "cooperative" else 1
    rows = height // shares
    if rows < 16 * config.num_warps:
        return (
            f"{config.kernel} needs 64 rows for every 4 warps, got {rows} rows for "
            f"{config.num_warps} warps"
        )
    held = rows * width // (32 * config.num_warps)
    # Without spills, ptxas 12.8: unspecialised warps and three consumers have fewer registers.
    limit = 128 if config.warp_specialize == "none" or shares == 3 else 192
    if held > limit:
        return f"{config.kernel} needs <= {limit} accumulators a thread, got {held}"
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
WGMMA_RULES = (addressable, persistent, not_batched, wgmma_step, wgmma_tile, wgmma_warps)
