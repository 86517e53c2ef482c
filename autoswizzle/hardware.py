"""GPU facts: what bounds residency, the caches and rates of known GPUs, and of this one.

Sources: [CPG] CUDA C++ Programming Guide 13, table "Technical Specifications per Compute
Capability"; [A100] NVIDIA A100 datasheet and whitepaper; [A10] [L4] [L40S] NVIDIA datasheets;
[ADA] Ada GPU architecture whitepaper; [BW] RTX Blackwell architecture whitepaper; [H100] H100
datasheet and whitepaper; [H200] H200 datasheet; [B200] HGX B200 datasheet; [M] measured for this
project on an H200, 2026-11-29.
Rates are dense, with fp32 accumulation.
"""

import logging
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from autoswizzle.errors import HardwareError, UnavailableError

KIB, MIB = 1024, 1024**2
REGISTER_UNIT = 256  # registers a warp's allocation is rounded up to, sm_80 to sm_120 [CPG]
WARP_SIZE = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SmLimits:
    """What one streaming multiprocessor offers its resident blocks (bytes, counts)."""

    shared_bytes: int
    shared_bytes_per_block: int
    warps: int
    blocks: int
    registers: int = 65536
    shared_reserved_per_block: int = 1024  # taken by the driver for each block [CPG]


LIMITS = {  # [CPG]
    80: SmLimits(164 * KIB, 163 * KIB, 64, 32),
    86: SmLimits(100 * KIB, 99 * KIB, 48, 16),
    89: SmLimits(100 * KIB, 99 * KIB, 48, 24),
    90: SmLimits(228 * KIB, 227 * KIB, 64, 32),
    100: SmLimits(228 * KIB, 227 * KIB, 64, 32),
    120: SmLimits(100 * KIB, 99 * KIB, 48, 24),
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak dense rates in TFLOP/s by input precision; 0 where the GPU has none."""

    bf16: float
    fp16: float
    tf32: float
    fp32: float
    fp8: float = 0.0

    def tflops(self, precision: str) -> float:
        """The rate of fp8, fp16, bf16, tf32 or fp32 in TFLOP/s."""
        return float(getattr(self, precision))


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
                changed, num_sms=num_sms, rates=_scaled(self.rates, scale), measured=kept_up
            )
        if l2_mb is not None:
            if not 1 / MIB <= l2_mb <= MIB:
                raise HardwareError(f"l2_mb must be in 2^-20..2^20 MiB, got {l2_mb!r}")
            changed = replace(changed, l2_effective_bytes=int(l2_mb * MIB))
        return changed


def _gpu(
    name: str,
    capability: int,
    num_sms: int,
    l2_mib: float,
    dram_gbs: float,
    rates: Rates,
    source: str,
    effective_mib: float | None = None,
) -> Gpu:
    l2_bytes = int(l2_mib * MIB)
    effective = int((effective_mib or l2_mib) * MIB)
    return Gpu(
        name, capability, num_sms, l2_bytes, effective, dram_gbs, rates, LIMITS[capability], source
    )


_A100 = Rates(bf16=312, fp16=312, tf32=156, fp32=19.5)
_H100_SXM = Rates(bf16=989.4, fp16=989.4, tf32=494.7, fp32=66.9, fp8=1978.9)
# The H100's L2 is the H200's two partitions; its effective half is by that analogy, not measured.
CATALOGUE = (
    _gpu("A100-40GB", 80, 108, 40, 1555, _A100, "[A100]"),
    _gpu("A100-80GB", 80, 108, 40, 2039, _A100, "[A100] SXM"),
    _gpu("A10", 86, 72, 6, 600, Rates(125, 125, 62.5, 31.2), "[A10]"),
    _gpu("L4", 89, 58, 48, 300, Rates(121, 121, 60, 30.3, 242.5), "[L4]"),
    _gpu("L40S", 89, 142, 96, 864, Rates(362, 362, 183, 91.6, 733), "[L40S]"),
    _gpu("RTX 4090", 89, 128, 72, 1008, Rates(165.2, 165.2, 82.6, 82.6, 330.3), "[ADA]"),
    _gpu("RTX 5080", 120, 84, 64, 960, Rates(112.6, 112.6, 56.3, 56.3, 225.1), "[BW]"),
    _gpu("H100 SXM", 90, 132, 50, 3350, _H100_SXM, "[H100]; effective L2 as H200", 25),
    _gpu(
        "H100 PCIe", 90, 114, 50, 2000, Rates(756, 756, 378, 51, 1513),
        "[H100]; effective L2 as H200", 25,
    ),
    _gpu("H200", 90, 132, 60, 4800, _H100_SXM, "[H200]; effective L2 [M] from DRAM counters", 30),
    _gpu("B200", 100, 148, 126, 8000, Rates(2250, 2250, 1100, 75, 4500), "[B200]"),
)  # fmt: skip


def find_gpu(name: str) -> Gpu:
    """The catalogue's GPU of that name, ignoring case, spaces and hyphens; raises HardwareError."""
    wanted = _plain(name)
    for gpu in CATALOGUE:
        if _plain(gpu.name) == wanted:
            return gpu
    known = ", ".join(gpu.name for gpu in CATALOGUE)
    raise HardwareError(f"gpu must be one of {known}, got {name!r}")


def as_gpu(gpu: Gpu | str) -> Gpu:
    """The facts themselves, or those of the catalogue's GPU of that name; raises HardwareError."""
    if isinstance(gpu, str):
        return find_gpu(gpu)
    if not isinstance(gpu, Gpu):
        raise HardwareError(f"gpu must be a Gpu, a name or None, got {gpu!r:.80}")
    return gpu


def check_device(device: object) -> None:
    """Raises HardwareError unless device can be the number of a CUDA device."""
    if type(device) is not int or device < 0:
        raise HardwareError(f"device must be an integer of at least 0, got {device!r:.80}")


def _plain(name: str) -> str:
    lowered = name.lower().replace("nvidia", "").replace("geforce", "")
    return "".join(char for char in lowered if char.isalnum())


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What torch or the driver's tools report of one device; None where they say nothing."""

    name: str
    capability: int
    num_sms: int | None = None
    l2_bytes: int | None = None
    shared_bytes: int | None = None
    shared_bytes_per_block: int | None = None


@lru_cache(maxsize=64)
def detect(device: int = 0) -> Gpu:
    """The facts of CUDA device number device, from torch, then the driver's tools.

    A fact that neither reports comes from the catalogue's nearest GPU, with one warning.
    Raises UnavailableError when there is no such device.
    """
    facts = _torch_facts(device) or _driver_facts(device, _run_tool)
    if facts is None:
        raise UnavailableError(f"no CUDA device {device}: torch and nvidia-smi find none")
    return gpu_from_facts(facts)


def gpu_from_facts(facts: DeviceFacts, catalogue: Sequence[Gpu] = CATALOGUE) -> Gpu:
    """A Gpu from reported facts, completed from the catalogue's nearest GPU.

    Nearest: same capability, then SM count; rates scale with the SM count. Warns once for each fact
    that is a default. Raises UnavailableError for a capability no entry covers.
    """
    peers = [gpu for gpu in catalogue if gpu.capability == facts.capability]
    if not peers:
        covered = sorted({gpu.capability for gpu in catalogue})
        raise UnavailableError(
            f"compute capability must be one of {covered}, got {facts.capability} ({facts.name})"
        )
    named = [gpu for gpu in peers if _plain(gpu.name) in _plain(facts.name)]
    wanted_sms = facts.num_sms or 0
    peer = min(
        named or peers,
        key=lambda gpu: (abs(gpu.num_sms - wanted_sms), abs(gpu.l2_bytes - (facts.l2_bytes or 0))),
    )
    defaults = [name for name in ("num_sms", "l2_bytes") if not getattr(facts, name)]
    if defaults:
        _log.warning(
            "%s does not report %s; using the %s's", facts.name, " and ".join(defaults), peer.name
        )
    num_sms = facts.num_sms or peer.num_sms
    l2_bytes = facts.l2_bytes or peer.l2_bytes
    scale = num_sms / peer.num_sms
    limits = replace(
        peer.limits,
        shared_bytes=facts.shared_bytes or peer.limits.shared_bytes,
        shared_bytes_per_block=facts.shared_bytes_per_block or peer.limits.shared_bytes_per_block,
    )
    same = scale == 1.0 and abs(l2_bytes - peer.l2_bytes) < MIB
    effective = int(l2_bytes * peer.l2_effective_bytes / peer.l2_bytes)
    return Gpu(
        name=facts.name,
        capability=facts.capability,
        num_sms=num_sms,
        l2_bytes=l2_bytes,
        l2_effective_bytes=peer.l2_effective_bytes if same else effective,
        dram_gbs=peer.dram_gbs,
        rates=peer.rates if same else _scaled(peer.rates, scale),
        limits=limits,
        source=f"reported; rates of {peer.name}" + ("" if same else " by SM count"),
    )


def _scaled(rates: Rates, factor: float) -> Rates:
    return Rates(
        bf16=rates.bf16 * factor,
        fp16=rates.fp16 * factor,
        tf32=rates.tf32 * factor,
        fp32=rates.fp32 * factor,
        fp8=rates.fp8 * factor,
    )


def _torch_facts(device: int) -> DeviceFacts | None:
    import torch

    if not torch.cuda.is_available():
        return None
    count = torch.cuda.device_count()
    if not 0 <= device < count:
        raise HardwareError(f"device must be in 0..{count - 1} ({count} visible), got {device}")
    seen = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        name=seen.name,
        capability=10 * seen.major + seen.minor,
        num_sms=seen.multi_processor_count,
        l2_bytes=getattr(seen, "L2_cache_size", None),
        shared_bytes=getattr(seen, "shared_memory_per_multiprocessor", None),
        shared_bytes_per_block=getattr(seen, "shared_memory_per_block_optin", None),
    )


def _driver_facts(device: int, run: Callable[[list[str]], str | None]) -> DeviceFacts | None:
    identity = _driver_name(device)
    if not identity:
        return None
    query = [
        "nvidia-smi",
        f"--id={identity}",
        "--query-gpu=name,compute_cap",
        "--format=csv,noheader",
    ]
    answer = run(query)
    if not answer:
        return None
    name, _, capability = answer.strip().splitlines()[0].rpartition(",")
    digits = capability.strip().replace(".", "")
    return DeviceFacts(name.strip(), int(digits)) if digits.isdigit() else None


def _driver_name(device: int) -> str:
    """What the driver's tool calls a device, counted among those made visible; "" for none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(device)
    names = visible.split(",")
    return names[device].strip() if device < len(names) else ""


def _run_tool(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a driver that hangs, say
        return None
    return done.stdout if done.returncode == 0 else None


def driver_version() -> str | None:
    """The NVIDIA driver's version, from the driver's tool; None without one."""
    answer = _run_tool(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return answer.strip().splitlines()[0] if answer and answer.strip() else None
