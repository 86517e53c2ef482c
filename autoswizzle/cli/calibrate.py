"""`autoswizzle calibrate`: measure what this machine's GPU keeps up, for the predictor."""

from typing import Annotated

import typer

from autoswizzle.calibration import READINGS, Calibration, Reading, keep
from autoswizzle.cli.options import Device, Json, need_triton, present_gpu
from autoswizzle.errors import printable
from autoswizzle.hardware import MIB
from autoswizzle.report.tables import print_json, table

_SHOWN = {  # title, unit and what a reading is divided by
    "dram_gbs": ("DRAM, copy", "GB/s", 1),
    "l2_gbs": ("L2, read by all SMs", "GB/s", 1),
    "l2_effective_bytes": ("L2, effective capacity", "MiB", MIB),
    "tflops": ("tensor cores, bf16 torch.matmul", "TFLOP/s", 1),
    "launch_us": ("launch of an empty kernel", "us", 1),
}


def calibrate(
    device: Device = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and print, but keep nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure what the GPU keeps up.

    DRAM and L2 bandwidth, effective L2 capacity, tensor-core rate and launch latency, in less than
    a minute. The cache folder keeps them, and rank, simulate and tune then predict by them.
    """
    need_triton()
    gpu = present_gpu(device)
    import torch

    from autoswizzle import microbench

    with torch.cuda.device(device):
        found = microbench.calibrate(gpu, microbench.CudaProbes(gpu))
    path = None if dry_run else keep(found, gpu)
    if as_json:
        print_json({**found.to_dict(), "file": path and str(path)})
        return
    print(f"{found.gpu}, {found.num_sms} SMs, {found.l2_bytes / MIB:g} MiB of L2, {found.date}")
    print(table(("measured", "median", "unit", "spread %"), _rows(found)))
    if path is not None:
        print(f"kept in {printable(path)}")


def _rows(found: Calibration) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name in READINGS:
        title, unit, scale = _SHOWN[name]
        reading: Reading = getattr(found, name)
        rows.append((title, reading.value / scale, unit, 100 * reading.spread))
    return rows
