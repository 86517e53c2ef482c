"""What a compiled kernel takes of a streaming multiprocessor, and how many blocks fit on one."""

from dataclasses import dataclass

from autoswizzle.hardware import REGISTER_UNIT, WARP_SIZE, Gpu


@dataclass(frozen=True, slots=True)
class Resources:
    """registers per thread, shared_bytes per block, num_warps of a block with producer warps."""

    registers: int
    shared_bytes: int
    num_warps: int
    spill_bytes: int = 0
    warnings: tuple[str, ...] = ()


def resident_blocks(resources: Resources, gpu: Gpu) -> int:
    """Blocks one SM holds at once; 0 when one can't launch."""
    limits = gpu.limits
    if resources.shared_bytes > limits.shared_bytes_per_block:
        return 0
    per_warp = -(-resources.registers * WARP_SIZE // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = limits.registers // per_warp // 4 * 4 // resources.num_warps
    by_shared = limits.shared_bytes // (
        resources.shared_bytes + limits.shared_reserved_per_block
    )
    return min(by_registers, by_shared, limits.warps // resources.num_warps, limits.blocks)


def why_infeasible(resources: Resources, gpu: Gpu) -> str | None:
    """Why no block fits on an SM of gpu, None when one does."""
    return None if resident_blocks(resources, gpu) else f"{resources} does not fit on {gpu.name}"
