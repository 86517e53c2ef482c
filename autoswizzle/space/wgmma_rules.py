"""Rules of legality of the wgmma family, and of multicast, which multiplies the same tiles."""

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space.geometry import cluster_size, consumers, multiplied, pieces, tail
from autoswizzle.space.rules import addressable, not_batched, persistent, split_added, split_parts

# Slices that a tile is stored in, by its columns.
SLICES = {
    32: (1, 2), 64: (1, 2, 4), 96: (3, 6), 128: (1, 2, 4, 8), 160: (5, 10), 192: (3, 6),
    256: (1, 2, 4, 8),
}  # fmt: skip


def operands(problem: GemmProblem) -> str | None:
    """The hardware reads a 16-bit operand from shared memory either way, a 32-bit one along k."""
    if problem.dtype == "fp32" and problem.precision != "tf32":
        return f"needs precision tf32 for fp32, got {problem.precision}"
    if problem.dtype == "fp32" and problem.layout != "nt":
        return f"needs layout nt for tf32, got {problem.layout}"
    return None


def step(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """A k step is one or two rows of the widest shared-memory swizzle."""
    if config.block_k * problem.itemsize not in (128, 256):
        wanted = f"{128 // problem.itemsize} or {256 // problem.itemsize}"
        return f"{config.kernel} needs block_k {wanted} for {problem.dtype}, got {config.block_k}"
    return None


def tile(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
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


def warps(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
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


def swap(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
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


def split(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Partial sums are kept for every part of a tile but the last, which adds them."""
    if config.split_k == 1 and not config.stream_k:
        return None
    if config.warp_specialize == "none":
        return "wgmma needs warp_specialize cooperative or pingpong to split k, got none"
    threads = 32 * config.num_warps * consumers(config)
    added = config.block_m * config.block_n // config.epilogue_subtile // threads
    if reason := split_added(added):
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
    return split_parts(config, problem, gpu)


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


WGMMA_RULES = (addressable, persistent, not_batched, step, tile, warps)
