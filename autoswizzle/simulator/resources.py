"""What a kernel takes of an SM, in closed form, and how many of its blocks an SM holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.hardware import REGISTER_UNIT, WARP_SIZE, Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.smem import tile_layout, warp_grid
from autoswizzle.space import consumers, multiplied, row_strips

MAX_REGISTERS = 255  # of a thread, sm_80 to sm_120 [CPG]
MAX_BLOCK_WARPS = 32  # of a block, sm_80 to sm_120 [CPG]
SHARED_UNIT = 128  # bytes a block's shared memory is rounded up to, sm_80 to sm_120 [CPG]
SUB_PARTITIONS = 4  # of an SM; each has a quarter of the registers and of the warps
REGISTER_BYTES = 4
BARRIER_BYTES = 8  # of an mbarrier [PTX ISA]


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
    """What config takes for problem on gpu, without compiling it.

    Shared memory is what triton 3.6 allocates; registers are a fit over compiled kernels, see
    docs/predictor.md. Raises ConfigError for a kernel that is not one of ours.
    """
    if config.kernel not in _ESTIMATES:
        raise ConfigError(f"kernel must be one of {', '.join(_ESTIMATES)}, got {config.kernel!r}")
    return _ESTIMATES[config.kernel](config, problem, gpu)


def uses_wgmma(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> bool:
    """Whether the tile product is a wgmma: sm_90, 64 rows for each four warps, not ieee fp32."""
    if gpu.capability != 90 or config.kernel == "mma_sync" or problem.rate == "fp32":
        return False
    return multiplied(config)[0] >= 64 and config.num_warps % 4 == 0


def copies_asynchronously(config: GemmConfig, problem: GemmProblem) -> bool:
    """Whether loads run ahead of the arithmetic: runs of at least 4 bytes, a cp.async's least."""
    if config.kernel == "gemv":
        return False
    return config.kernel != "pointer" or bool(problem.aligned) or problem.itemsize >= 4


def _pointer(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """A wgmma or tcgen05 reads one stage while others load, so it keeps one buffer more. The end of
    a split tile holds its sums, those of another part and their addresses.
    """
    in_tensor_memory = gpu.capability == 100 and config.block_m >= 64 and problem.rate != "fp32"
    asynchronous = uses_wgmma(config, problem, gpu) or in_tensor_memory
    buffers = max(config.num_stages - (not asynchronous), 1)
    if not copies_asynchronously(config, problem):
        buffers = 2 if in_tensor_memory else 1
    shared = buffers * _stage_bytes(config, problem)
    threads = WARP_SIZE * config.num_warps
    sums = config.block_m * config.block_n // threads
    accumulators = 0 if in_tensor_memory else sums
    if problem.aligned:  # an address, or more, for each 16 bytes a thread copies in a step
        copies = sum(
            max(1, block * config.block_k * problem.itemsize / 16 / threads)
            for block in (config.block_m, config.block_n)
        )
        held = 32 + copies * (5 if config.persistent else 3)
    else:
        held = 20 + 5 * _stage_bytes(config, problem) / 4 / threads
    registers = accumulators + held
    if config.split_k > 1:
        registers = max(registers, 2.5 * sums + 20)
    return _resources(config, registers, shared + in_tensor_memory * 2 * BARRIER_BYTES)


def _tma(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """A loop over tiles keeps buffers of its own for C; the while loop of dynamic scheduling
    reuses those of A and B. An m-major A has barriers apart from B's.
    """
    operands = config.num_stages * _stage_bytes(config, problem)
    barriers = config.num_stages * BARRIER_BYTES
    if problem.layout[0] == "t":
        barriers += _round_up(barriers, 16)
    out = _out_bytes(config, problem)
    shared = max(operands, out) if config.scheduling == "dynamic" else operands + out
    accumulators = config.block_m * config.block_n // (WARP_SIZE * config.num_warps)
    return _resources(config, accumulators + 30, shared + barriers)


def _wgmma(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """C leaves through one or two buffers of a slice; barriers and queues to within 64 bytes."""
    strips = row_strips(config)
    stores = min(strips * config.epilogue_subtile, 2) * _out_bytes(config, problem) // strips
    shared = config.num_stages * (_stage_bytes(config, problem) + BARRIER_BYTES) + stores
    dynamic = config.scheduling == "dynamic"
    if config.warp_specialize == "none":
        accumulators = config.block_m * config.block_n // (WARP_SIZE * config.num_warps)
        return Resources(accumulators + 26, shared + dynamic * 108, config.num_warps)
    if config.warp_specialize == "pingpong":
        shared += stores + 200  # each consumer stores a tile of its own
    else:
        shared += 124 if config.num_warps == 8 else 176
    shared += config.num_stages * BARRIER_BYTES + dynamic * 136
    # Consumers and a producer, in warp groups of four: they start with the registers an SM has for
    # that many groups, and trade them afterwards.
    warps = consumers(config) * config.num_warps + 4
    return Resources(gpu.limits.registers // (WARP_SIZE * warps) // 8 * 8, shared, warps)


def _multicast(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """A wgmma kernel with a second set of barriers: both blocks release what is multicast."""
    found = _wgmma(config, problem, gpu)
    barriers = config.num_stages * BARRIER_BYTES + 16
    return replace(found, shared_bytes=found.shared_bytes + barriers)


def _mma_sync(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """C lies over the ring of A and B; a warp holds its fragments of a whole k step."""

    def tile(kind: str, lines: int, inner: int, itemsize: int) -> int:
        row_bytes = tile_layout(kind, inner, itemsize).row_bytes
        return lines * row_bytes - (row_bytes - inner * itemsize)  # the last line needs no padding

    stages, block_k = config.num_stages, config.block_k
    ring = 0
    for kind, block, by_k in (
        (config.smem_a, config.block_m, problem.layout[0] == "n"),
        (config.smem_b, config.block_n, problem.layout[1] == "t"),
    ):
        lines, inner = (block, block_k) if by_k else (block_k, block)
        ring += tile(kind, stages * lines, inner, problem.itemsize)
    shared = max(ring, tile(config.smem_c, config.block_m, config.block_n, 4))
    warps_m, warps_n = warp_grid(config.block_m, config.block_n, config.num_warps)
    operands = (config.block_m // warps_m + config.block_n // warps_n) * block_k
    fragments = operands * problem.itemsize // (REGISTER_BYTES * WARP_SIZE)
    accumulators = config.block_m * config.block_n // (WARP_SIZE * config.num_warps)
    return _resources(config, accumulators + fragments, shared)


def _gemv(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """The sums of a thread, its elements of b, a run of each row of a; warps add up at the end."""
    own = config.block_n * config.block_k / (WARP_SIZE * config.num_warps)
    loaded = own * problem.itemsize / REGISTER_BYTES + 4 * config.block_m
    shared = config.block_n * config.num_warps * 4
    return _resources(config, 20 + own * config.block_m + loaded, shared)


def _skinny(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """The sums of a thread, two k steps of loads, an address for each 8 lines; warps add up at the
    end.
    """
    lines, tile = config.block_m + config.block_n, config.block_m * config.block_n
    step_bytes = _stage_bytes(config, problem) / (WARP_SIZE * config.num_warps)
    held = 2 * step_bytes / REGISTER_BYTES + tile / WARP_SIZE + lines / 4
    return _resources(config, 18 + held, tile * config.num_warps * 4)


_ESTIMATES: Mapping[str, Callable[[GemmConfig, GemmProblem, Gpu], Resources]] = {
    "pointer": _pointer,
    "tma": _tma,
    "wgmma": _wgmma,
    "multicast": _multicast,
    "mma_sync": _mma_sync,
    "gemv": _gemv,
    "skinny": _skinny,
}


def _resources(config: GemmConfig, registers: float, shared_bytes: int) -> Resources:
    cap = min(config.max_registers or MAX_REGISTERS, MAX_REGISTERS)
    needed = _round_up(int(registers), 8)
    spilled = max(0, needed - cap) * REGISTER_BYTES
    return Resources(min(needed, cap), shared_bytes, config.num_warps, spilled)


def _stage_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    return (config.block_m + config.block_n) * config.block_k * problem.itemsize


def _out_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    return config.block_m * config.block_n * problem.out_itemsize // config.epilogue_subtile
