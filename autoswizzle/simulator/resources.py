"""What a kernel takes of an SM, in closed form, and how many of its blocks an SM holds."""

from dataclasses import dataclass

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import REGISTER_UNIT, WARP_SIZE, Gpu
from autoswizzle.problem import GemmProblem

MAX_REGISTERS = 255  # of a thread, sm_80 to sm_120 [CPG]
MAX_BLOCK_WARPS = 32  # of a block, sm_80 to sm_120 [CPG]
SHARED_UNIT = 128  # bytes a block's shared memory is rounded up to, sm_80 to sm_120 [CPG]
SUB_PARTITIONS = 4  # of an SM; each has a quarter of the registers and of the warps


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled or estimated kernel takes of an SM.

    registers: of a thread. shared_bytes: of a block, static and dynamic. num_warps: of a block,
    producer warps included. spill_bytes: of a thread. warnings: the compiler's, one line each.
    """

    registers: int
    shared_bytes: int
    num_warps: int
    spill_bytes: int = 0
    warnings: tuple[str, ...] = ()


def why_infeasible(resources: Resources, gpu: Gpu) -> str | None:
    """Why not even one block fits on an SM of gpu, None when one does."""
    limits = gpu.limits
    rounded_warps = _round_up(resources.num_warps, SUB_PARTITIONS)
    for name, value, limit in (
        ("shared memory of a block", resources.shared_bytes, limits.shared_bytes_per_block),
        ("registers of a thread", resources.registers, MAX_REGISTERS),
        ("warps of a block", resources.num_warps, MAX_BLOCK_WARPS),
        ("registers of a block", _warp_registers(resources) * rounded_warps, limits.registers),
    ):
        if value > limit:
            return f"{name} must be <= {limit} on {gpu.name}, got {value}"
    return None


def resident_blocks(resources: Resources, gpu: Gpu) -> int:
    """Blocks an SM of gpu holds at once, 0 when none fits: the driver's occupancy calculation."""
    if why_infeasible(resources, gpu) is not None:
        return 0
    limits = gpu.limits
    warp_registers = _warp_registers(resources)
    warps_a_partition = limits.registers // SUB_PARTITIONS // warp_registers
    shared = _round_up(resources.shared_bytes + limits.shared_reserved_per_block, SHARED_UNIT)
    return min(
        warps_a_partition * SUB_PARTITIONS // resources.num_warps,
        limits.warps // resources.num_warps,
        limits.shared_bytes // shared,
        limits.blocks,
    )


def _warp_registers(resources: Resources) -> int:
    return _round_up(max(resources.registers, 1) * WARP_SIZE, REGISTER_UNIT)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def estimate(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """What config takes for problem on gpu, without compiling it."""
    tile = config.block_m * config.block_n
    accumulators = tile // (WARP_SIZE * config.num_warps)
    stage = (config.block_m + config.block_n) * config.block_k * problem.itemsize
    return Resources(
        min(accumulators + 64, MAX_REGISTERS), config.num_stages * stage, config.num_warps
    )


def uses_wgmma(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> bool:
    """Whether the tile product is a wgmma: sm_90, 64 rows for each four warps, not ieee fp32."""
    if gpu.capability != 90 or config.kernel == "mma_sync" or problem.rate == "fp32":
        return False
    return config.block_m >= 64 and config.num_warps % 4 == 0
