"""What is known of a GPU: what bounds residency, its caches and rates, and what it keeps up.

Sources: [CPG] CUDA C++ Programming Guide 13, table "Technical Specifications per Compute
Capability"; [M] measured for this project on an H200, 2026-11-29.
"""

import math
from dataclasses import dataclass, replace

from autoswizzle.errors import HardwareError

KIB, MIB = 1024, 1024**2
REGISTER_UNIT = 256  # registers a warp's allocation is rounded up to, sm_80 to sm_120 [CPG]
WARP_SIZE = 32


@dataclass(frozen=True, slots=True)
class SmLimits:
    """What one streaming multiprocessor offers its resident blocks (bytes, counts)."""

    shared_bytes: int
    shared_bytes_per_block: int
    warps: int
    blocks: int
    registers: int = 65536
    shared_reserved_per_block: int = 1024  # taken by the driver for each block [CPG]


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak dense rates in TFLOP/s by input precision, fp32 accumulation; 0 where it has none."""

    bf16: float
    fp16: float
    tf32: float
    fp32: float
    fp8: float = 0.0

    def tflops(self, precision: str) -> float:
        """The rate of fp8, fp16, bf16, tf32 or fp32 in TFLOP/s."""
        return float(getattr(self, precision))

    def scaled(self, factor: float) -> "Rates":
        """The rates of factor times as many SMs."""
        return Rates(
            bf16=self.bf16 * factor,
            fp16=self.fp16 * factor,
            tf32=self.tf32 * factor,
            fp32=self.fp32 * factor,
            fp8=self.fp8 * factor,
        )


@dataclass(frozen=True, slots=True)
class Sustained:
    """What a GPU keeps up: measured (`autoswizzle calibrate`), or expected from its datasheet.

    dram_gbs: read and written by a copy, GB/s. l2_gbs: that the L2 delivers to all SMs, GB/s.
    peak_share: of Rates that torch.matmul reaches on a large product. launch_us: of an empty kernel
    in a stream of them.
    """

    dram_gbs: float
    l2_gbs: float
    peak_share: float
    launch_us: float

    def __post_init__(self) -> None:
        for field in ("dram_gbs", "l2_gbs", "peak_share", "launch_us"):
            value = getattr(self, field)
            if not 0 < value < math.inf:
                raise HardwareError(f"{field} must be a number above 0, got {value!r}")


# Of an H200, 2026-11-29 [M]; other GPUs are expected to keep up the same shares.
DRAM_SHARE = 0.90  # of the datasheet's bandwidth: 4.3 of 4.8 TB/s
PEAK_SHARE = 0.71  # of the datasheet's rate: 702 of 989 TFLOP/s, bf16
L2_GBS_PER_SM = 75.0  # 9.9 TB/s over 132 SMs
LAUNCH_US = 3.0


def chip_of(vendor: str, capability: int, num_sms: int, l2_bytes: int, shared_bytes: int) -> str:
    """What tells GPUs apart, the marketing name left out: nvidia-sm90-132sms-60MiB-227KiB.

    shared_bytes: a block's limit.
    """
    sizes = f"{l2_bytes / MIB:g}MiB-{shared_bytes / KIB:g}KiB"
    return f"{vendor}-sm{capability}-{num_sms}sms-{sizes}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: identity, capacities in bytes, rates.

    capability: 90 for compute capability 9.0. l2_bytes: as reported. l2_effective_bytes: what one
    SM finds cached (half of it where the L2 is two partitions that both keep far data).
    dram_gbs: GB/s. measured: what this machine's keeps up, where it is calibrated.
    """

    name: str
    capability: int
    num_sms: int
    l2_bytes: int
    l2_effective_bytes: int
    dram_gbs: float
    rates: Rates
    limits: SmLimits
    source: str
    vendor: str = "nvidia"
    measured: Sustained | None = None

    @property
    def sustained(self) -> Sustained:
        """What it keeps up: as measured, else the H200's shares of the datasheet."""
        l2_gbs = L2_GBS_PER_SM * self.num_sms
        expected = Sustained(DRAM_SHARE * self.dram_gbs, l2_gbs, PEAK_SHARE, LAUNCH_US)
        return self.measured or expected

    @property
    def chip(self) -> str:
        """What tells GPUs apart, see chip_of."""
        shared_bytes = self.limits.shared_bytes_per_block
        return chip_of(self.vendor, self.capability, self.num_sms, self.l2_bytes, shared_bytes)

    def __post_init__(self) -> None:
        for field in ("num_sms", "l2_bytes", "l2_effective_bytes", "dram_gbs"):
            value = getattr(self, field)
            if not value > 0:
                raise HardwareError(f"{field} must be greater than 0, got {value!r}")

    def with_overrides(self, num_sms: int | None = None, l2_mb: float | None = None) -> "Gpu":
        """The same GPU with the SM count or effective L2 capacity (MiB) the caller states.

        What its SMs compute and draw from the L2 goes with their number; DRAM stays as it is.
        Raises HardwareError.
        """
        changed = self
        if num_sms is not None:
            if type(num_sms) is not int or num_sms < 1:
                raise HardwareError(f"num_sms must be an integer of at least 1, got {num_sms!r}")
            scale = num_sms / self.num_sms
            kept_up = self.measured and replace(self.measured, l2_gbs=scale * self.measured.l2_gbs)
            changed = replace(
                changed, num_sms=num_sms, rates=self.rates.scaled(scale), measured=kept_up
            )
        if l2_mb is not None:
            if not 1 / MIB <= l2_mb <= MIB:
                raise HardwareError(f"l2_mb must be in 2^-20..2^20 MiB, got {l2_mb!r}")
            changed = replace(changed, l2_effective_bytes=int(l2_mb * MIB))
        return changed
