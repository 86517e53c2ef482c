"""The catalogue of GPUs, with the source of each entry.

Sources: [CPG] CUDA C++ Programming Guide 13, table "Technical Specifications per Compute
Capability"; [A100] NVIDIA A100 datasheet and whitepaper; [A10] [L4] [L40S] NVIDIA datasheets;
[ADA] Ada GPU architecture whitepaper; [BW] RTX Blackwell architecture whitepaper; [H100] H100
datasheet and whitepaper; [H200] H200 datasheet; [B200] HGX B200 datasheet; [M] measured for this
project on an H200, 2026-11-29.
Rates are dense, with fp32 accumulation.
"""

from autoswizzle.errors import HardwareError
from autoswizzle.hardware.gpu import KIB, MIB, Gpu, Rates, SmLimits

LIMITS = {  # [CPG]
    80: SmLimits(164 * KIB, 163 * KIB, 64, 32),
    86: SmLimits(100 * KIB, 99 * KIB, 48, 16),
    89: SmLimits(100 * KIB, 99 * KIB, 48, 24),
    90: SmLimits(228 * KIB, 227 * KIB, 64, 32),
    100: SmLimits(228 * KIB, 227 * KIB, 64, 32),
    120: SmLimits(100 * KIB, 99 * KIB, 48, 24),
}


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
    wanted = plain(name)
    for gpu in CATALOGUE:
        if plain(gpu.name) == wanted:
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


def plain(name: str) -> str:
    """Letters and digits of a GPU's name, in lower case, without the vendor's words."""
    lowered = name.lower().replace("nvidia", "").replace("geforce", "")
    return "".join(char for char in lowered if char.isalnum())
