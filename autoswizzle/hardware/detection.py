"""The GPU that is here: what torch or the driver's tools report, completed from the catalogue."""

import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from autoswizzle.errors import HardwareError, UnavailableError
from autoswizzle.hardware.catalogue import CATALOGUE, plain
from autoswizzle.hardware.gpu import MIB, Gpu

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What torch or the driver's tools report of one device; None where they say nothing."""

    name: str
    capability: int
    num_sms: int | None = None
    l2_bytes: int | None = None
    shared_bytes: int | None = None
    shared_bytes_per_block: int | None = None


def check_device(device: object) -> None:
    """Raises HardwareError unless device can be the number of a CUDA device."""
    if type(device) is not int or device < 0:
        raise HardwareError(f"device must be an integer of at least 0, got {device!r:.80}")


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
    named = [gpu for gpu in peers if plain(gpu.name) in plain(facts.name)]
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
        rates=peer.rates if same else peer.rates.scaled(scale),
        limits=limits,
        source=f"reported; rates of {peer.name}" + ("" if same else " by SM count"),
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
