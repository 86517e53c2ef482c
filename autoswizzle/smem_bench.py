"""The mma_sync kernel under every shared-memory layout: predicted and measured conflicts, speed."""

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from autoswizzle import kernels
from autoswizzle.config import SMEM_SWIZZLES, GemmConfig
from autoswizzle.errors import ConfigError, UnavailableError
from autoswizzle.hardware import Gpu, detect
from autoswizzle.problem import GemmProblem
from autoswizzle.smem import (
    accumulator_lanes,
    bank_conflicts,
    gemm_traffic,
    row_lanes,
    tile_layout,
    warp_grid,
)

if TYPE_CHECKING:
    from autoswizzle.search.measure import Measurement
    from autoswizzle.simulator.resources import Resources

ARTICLE = GemmConfig(  # the source article's tile
    kernel="mma_sync", block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3
)
LINE_BYTES = 128  # of a wavefront without conflicts
_SHARED = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op"
METRICS = {
    "load_conflicts": f"{_SHARED}_ld.sum",
    "store_conflicts": f"{_SHARED}_st.sum",
    "load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "ldmatrix": "smsp__inst_executed_op_ldsm.sum",
    "ldmatrix_bytes": "sm__sass_data_bytes_mem_shared_op_ldsm.sum",
}
STALLS = (
    "barrier",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "mio_throttle",
    "not_selected",
    "short_scoreboard",
    "wait",
)
_STALL_METRIC = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COUNTED = {**METRICS, **{reason: _STALL_METRIC.format(reason) for reason in STALLS}}
PROFILE_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Access:
    """One kind of shared-memory access of a launch: what it is predicted to cost.

    wavefronts: without conflicts. ways: times more with them.
    """

    instruction: str
    ways: int
    wavefronts: int

    @property
    def conflicts(self) -> int:
        """Wavefronts that conflicts add."""
        return self.wavefronts * (self.ways - 1)


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One layout: what was predicted, compiled and measured of it."""

    config: GemmConfig
    accesses: Mapping[str, Access]
    resources: "Resources"
    measurement: "Measurement"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping."""
        return {
            "config": self.config.to_dict(),
            "predicted": {name: asdict(access) for name, access in self.accesses.items()},
            "resources": asdict(self.resources),
            "measurement": self.measurement.to_dict(),
        }


def layout_configs(base: GemmConfig = ARTICLE) -> dict[str, list[GemmConfig]]:
    """The experiments, by name; within one, a single thing changes.

    operands: A and B, by cp.async. operands_padded: the same with padding among them, so all
    copied through registers (C is padded throughout). result: C. max_registers: the compiler's cap.
    """
    best = replace(base, smem_a="128", smem_b="128")
    unpadded = [kind for kind in SMEM_SWIZZLES if kind != "padded"]
    return {
        "operands": [replace(base, smem_a=kind, smem_b=kind) for kind in unpadded],
        "operands_padded": [
            replace(base, smem_a=kind, smem_b=kind, smem_c="padded") for kind in SMEM_SWIZZLES
        ],
        "result": [replace(best, smem_c=kind) for kind in unpadded],
        "max_registers": [replace(best, max_registers=cap) for cap in (0, 168, 128, 96)],
    }


def predicted_accesses(config: GemmConfig, problem: GemmProblem) -> dict[str, Access]:
    """Every shared-memory access of config's launch on problem, by name.

    Copies by cp.async are not among them: the load and store counters don't see them. Raises
    ConfigError unless both operands are contiguous along k (layout nt) in 16-bit elements.
    """
    from autoswizzle.kernels.mma_sync import through_registers

    if config.kernel != "mma_sync" or problem.layout != "nt" or problem.itemsize != 2:
        raise ConfigError(f"layouts need mma_sync on 16-bit nt, got {config.kernel} on {problem}")
    warps_m, warps_n = warp_grid(config.block_m, config.block_n, config.num_warps)
    moved = gemm_traffic(
        problem.m,
        problem.n,
        problem.k,
        block_m=config.block_m,
        block_n=config.block_n,
        block_k=config.block_k,
        warps_m=warps_m,
        warps_n=warps_n,
    )
    copied = moved.shared_write - moved.c_shared_write  # A's and B's bytes
    rows = config.block_m + config.block_n
    accesses = {}
    for name, kind, block, reads in (
        ("a", config.smem_a, config.block_m, warps_n),
        ("b", config.smem_b, config.block_n, warps_m),
    ):
        layout = tile_layout(kind, config.block_k)
        tile_bytes = copied * block // rows
        lanes = accumulator_lanes() if kind == "padded" else None
        instruction = "ld.shared.b32" if kind == "padded" else "ldmatrix.x4"
        ways = bank_conflicts(layout, instruction, lanes).ways
        accesses[f"{name}_read"] = Access(instruction, ways, tile_bytes * reads // LINE_BYTES)
        if through_registers(config):
            ways = bank_conflicts(layout, "st.shared.b128", row_lanes(config.block_k, 8)).ways
            accesses[f"{name}_copy"] = Access("st.shared.b128", ways, tile_bytes // LINE_BYTES)
    layout = tile_layout(config.smem_c, config.block_n, 4)
    for name, instruction, lanes in (
        ("c_store", "st.shared.b64", accumulator_lanes()),
        ("c_load", "ld.shared.b128", row_lanes(config.block_n, 4)),
    ):
        ways = bank_conflicts(layout, instruction, lanes).ways
        accesses[name] = Access(instruction, ways, moved.c_shared_write // LINE_BYTES)
    return accesses


def predicted_conflicts(accesses: Mapping[str, Access]) -> tuple[int, int]:
    """(load, store) bank conflicts of a launch, as METRICS counts them."""
    loads = [item for item in accesses.values() if item.instruction.startswith("ld")]
    stores = [item for item in accesses.values() if item.instruction.startswith("st")]
    return sum(item.conflicts for item in loads), sum(item.conflicts for item in stores)


def bench_layouts(
    problem: GemmProblem,
    configs: Sequence[GemmConfig],
    *,
    rep_ms: float = 200.0,
    device: int = 0,
    gpu: Gpu | None = None,
) -> list[LayoutRow]:
    """Time configs in turns on one GPU, every product checked before.

    rep_ms: device time for each. Raises CompileError, WrongResultError.
    """
    import torch

    from autoswizzle.search.measure import Measurer

    gpu = gpu or detect(device)
    accesses = [predicted_accesses(config, problem) for config in configs]
    resources = [kernels.compile_for(config, problem, gpu) for config in configs]
    with torch.cuda.device(device):
        measurer = Measurer(problem, gpu, kernels.run, device=f"cuda:{device}")
        race = measurer.race(configs, rep_ms)
    return [
        LayoutRow(*row) for row in zip(configs, accesses, resources, race.measurements, strict=True)
    ]


def count_conflicts(problem: GemmProblem, configs: Sequence[GemmConfig]) -> list[dict[str, float]]:
    """Hardware counters of one launch of each configuration, by the names of METRICS and STALLS.

    Stalls are in warps per issued instruction. Runs Nsight Compute (ncu) on a process of its own.
    Raises UnavailableError with ncu's words where it is missing or may not count.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise UnavailableError("counting bank conflicts needs ncu (Nsight Compute) on the PATH")
    work = [problem.to_dict(), [config.to_dict() for config in configs]]
    command = [
        *(ncu, "--clock-control", "none", "--csv", "--print-units", "base"),
        *("--kernel-name", "regex:mma_sync_gemm", "--metrics", ",".join(COUNTED.values())),
        *(sys.executable, "-m", "autoswizzle.smem_bench", json.dumps(work)),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROFILE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as expired:
        raise UnavailableError(f"ncu did not end within {PROFILE_TIMEOUT_S} s") from expired
    counted = parse_counters(done.stdout)
    if len(counted) != len(configs):
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        raise UnavailableError(
            f"ncu must count {len(configs)} launches, got {len(counted)}: {said[-1]}"
        )
    return counted


def parse_counters(text: str, metrics: Mapping[str, str] = COUNTED) -> list[dict[str, float]]:
    """The counters of each launch in ncu's CSV output, in order of launch.

    metrics: ncu's name of each counter, by the name it gets here.
    """
    names = {metric: name for name, metric in metrics.items()}
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[header:]))):
        if row["Metric Name"] in names:
            value = float(row["Metric Value"].replace(",", ""))
            launches.setdefault(row["ID"], {})[names[row["Metric Name"]]] = value
    return list(launches.values())


def main(argument: str) -> None:
    """Launch each configuration once, for a profiler; argument: JSON [problem, [config, ...]]."""
    from autoswizzle.search.measure import make_inputs, make_output

    described, configs = json.loads(argument)
    problem = GemmProblem.from_dict(described)
    a, b = make_inputs(problem, "cuda", 0)
    out = make_output(problem, "cuda")
    for config in configs:
        kernels.run(GemmConfig.from_dict(config), problem, a, b, out)


if __name__ == "__main__":
    main(sys.argv[1])
