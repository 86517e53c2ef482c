"""What was measured of a GPU of this machine, kept in the cache folder and put to use."""

import json
import logging
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from autoswizzle.errors import HardwareError, check_printable
from autoswizzle.hardware import Gpu, Sustained
from autoswizzle.settings import settings

FOLDER = "calibration"  # in the cache folder: a file for each GPU model
SCHEMA = 1
READINGS = ("dram_gbs", "l2_gbs", "l2_effective_bytes", "tflops", "launch_us")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure measured several times: its median, least and most."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.value <= self.high < math.inf:
            raise HardwareError(f"a reading must have 0 < low <= value <= high, got {self}")

    @property
    def spread(self) -> float:
        """Most less least, relative to the median."""
        return (self.high - self.low) / self.value


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one GPU keeps up.

    gpu, num_sms, l2_bytes: the device's, as reported. date: ISO 8601. dram_gbs: GB/s read and
    written by a copy. l2_gbs: GB/s that the L2 delivers to all SMs. l2_effective_bytes: what an SM
    finds cached while all of them read the same. tflops: of a large bf16 torch.matmul. launch_us:
    of an empty kernel in a stream of them.
    """

    gpu: str
    num_sms: int
    l2_bytes: int
    date: str
    dram_gbs: Reading
    l2_gbs: Reading
    l2_effective_bytes: Reading
    tflops: Reading
    launch_us: Reading

    def applied_to(self, gpu: Gpu) -> Gpu:
        """Gpu with the measured capacity and rates in place of the expected ones."""
        return replace(
            gpu,
            l2_effective_bytes=int(self.l2_effective_bytes.value),
            measured=Sustained(
                dram_gbs=self.dram_gbs.value,
                l2_gbs=self.l2_gbs.value,
                peak_share=self.tflops.value / gpu.rates.bf16,
                launch_us=self.launch_us.value,
            ),
            source=f"{gpu.source}; calibrated {self.date[:10]}",
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping; of each reading also its spread."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        for name in READINGS:
            data[name]["spread"] = getattr(self, name).spread
        return data

    @classmethod
    def from_dict(cls, data: Any) -> "Calibration":  # noqa: ANN401 - whatever a file holds
        """Inverse of to_dict; raises HardwareError naming what is wrong."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise HardwareError(f"a calibration must be an object of schema {SCHEMA}")
        try:
            readings = {
                name: Reading(*(float(data[name][key]) for key in ("value", "low", "high")))
                for name in READINGS
            }
            others = {item.name: data[item.name] for item in fields(cls)} | readings
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise HardwareError(f"a calibration must have every field: {error!r}") from error
        for name in ("gpu", "date"):
            check_printable(name, others[name], HardwareError)
        return cls(**others)


def calibration_file(gpu: Gpu) -> Path:
    """Where the calibration of this machine's GPUs of that model lies."""
    name = re.sub("[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    return settings().cache_dir / FOLDER / f"{name}.json"


def keep(calibration: Calibration, gpu: Gpu) -> Path:
    """Store a calibration of gpu in place of an older one; returns its file."""
    path = calibration_file(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(calibration.to_dict(), indent=1) + "\n")
    temporary.replace(path)
    return path


def calibrated(gpu: Gpu) -> Gpu:
    """A GPU of this machine with what was measured of it; as it is where nothing was.

    A file that can't be used, or is of a GPU with other SMs or another L2 (a slice of one, say), is
    left alone with a warning.
    """
    path = calibration_file(gpu)
    try:
        found = Calibration.from_dict(json.loads(path.read_text()))
        applied = found.applied_to(gpu)
    except FileNotFoundError:
        return gpu
    except (OSError, ValueError, RecursionError) as error:  # HardwareError is a ValueError
        _log.warning("%s is not used: %s", path, error)
        return gpu
    if (found.num_sms, found.l2_bytes) != (gpu.num_sms, gpu.l2_bytes):
        _log.warning("%s is not used: it is of a GPU with %.80s SMs", path, found.num_sms)
        return gpu
    return applied
