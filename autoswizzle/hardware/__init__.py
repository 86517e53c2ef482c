"""GPU facts: what bounds residency, the caches and rates of known GPUs, and of this one."""

from autoswizzle.hardware.catalogue import CATALOGUE, as_gpu, find_gpu
from autoswizzle.hardware.detection import (
    DeviceFacts,
    check_device,
    detect,
    driver_version,
    gpu_from_facts,
)
from autoswizzle.hardware.gpu import (
    KIB,
    MIB,
    REGISTER_UNIT,
    WARP_SIZE,
    Gpu,
    Rates,
    SmLimits,
    Sustained,
    chip_of,
)

__all__ = [
    "CATALOGUE",
    "KIB",
    "MIB",
    "REGISTER_UNIT",
    "WARP_SIZE",
    "DeviceFacts",
    "Gpu",
    "Rates",
    "SmLimits",
    "Sustained",
    "as_gpu",
    "check_device",
    "chip_of",
    "detect",
    "driver_version",
    "find_gpu",
    "gpu_from_facts",
]
