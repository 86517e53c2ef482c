"""`autoswizzle calibrate` several times: how well it repeats, and a GPU that the catalogue lacks.

    python benchmarks/calibration.py [--runs 3] [--out FILE]

Writes calibration.json: every run, and for each constant the largest deviation from the runs' mean.
benchmarks/predictor.py and benchmarks/fit_time_model.py take it as --calibration: they then predict
for this GPU as if the catalogue had no entry for it, from what the first run measured.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

from record import folder_of, stamp, write

from autoswizzle.calibration import READINGS, Calibration
from autoswizzle.hardware import CATALOGUE, MIB, DeviceFacts, Gpu, detect, gpu_from_facts

FITTED_CAPACITY = 30 * MIB  # of an H200, from DRAM counters (tests/data)


def stranger(path: Path) -> Gpu:
    """The calibrated GPU of a result file, completed from a catalogue without its own entry."""
    data = json.loads(path.read_text())
    found = Calibration.from_dict(data["runs"][0])
    facts = DeviceFacts(found.gpu, data["capability"], found.num_sms, found.l2_bytes)
    others = [gpu for gpu in CATALOGUE if gpu.name.lower() not in found.gpu.lower()]
    return found.applied_to(gpu_from_facts(facts, others))


def deviation(runs: list[dict[str, Any]], name: str) -> float:
    """Largest relative distance of a run's reading from their mean."""
    values = [run[name]["value"] for run in runs]
    return max(abs(value / mean(values) - 1) for value in values)


def main() -> None:
    from autoswizzle.microbench import CudaProbes, calibrate

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = detect(0)
    runs: list[dict[str, Any]] = []
    seconds = []
    for _ in range(options.runs):
        began = time.monotonic()
        runs.append(calibrate(gpu, CudaProbes(gpu)).to_dict())
        seconds.append(round(time.monotonic() - began, 1))
        told = {name: round(runs[-1][name]["value"], 3) for name in READINGS}
        print(f"{told}, {seconds[-1]} s", flush=True)
    deviations = {name: deviation(runs, name) for name in READINGS}
    capacities = [run["l2_effective_bytes"]["value"] / FITTED_CAPACITY for run in runs]
    print("largest deviation from the mean:", {k: f"{v:.1%}" for k, v in deviations.items()})
    print("capacity over the fitted 30 MiB:", [round(ratio, 3) for ratio in capacities])
    result = {
        **stamp(gpu), "capability": gpu.capability, "seconds": seconds, "deviations": deviations,
        "capacity_over_fitted": capacities, "runs": runs,
    }  # fmt: skip
    path = options.out or folder_of(gpu) / "calibration.json"
    write(path, result)
    print("wrote", path)


if __name__ == "__main__":
    main()
