"""A first time model: where the microseconds of a launch go.

A launch runs in rounds of SMs x resident blocks. In a round the blocks of an SM share its tensor
cores, and each waits for its loads: a k step takes at least the latency of memory over the steps in
flight. L2 time hides behind arithmetic; DRAM time is added as a root of squares, since the busier
of the two hides most of the other, never all of it.
"""

from dataclasses import dataclass
from math import hypot, sqrt

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import copies_asynchronously, uses_wgmma
from autoswizzle.space import grid

# Read on an H200, 2026-11-29 (docs/predictor.md says from what); elsewhere they scale with the
# catalogue's rates, bandwidth and SM count.
PEAK_SHARE = {"pointer": 0.61, "tma": 0.64, "wgmma": 0.72, "mma_sync": 0.35}  # of the peak rate
MMA_SYNC_SHARE = 0.6  # of what wgmma reaches, on GPUs that have it
DRAM_SHARE = 0.90  # of the catalogue's bandwidth: 4.3 of 4.8 TB/s in a device-to-device copy
L2_BYTES_PER_SM_US = 75_000  # that an SM takes from L2 in a microsecond: 10 TB/s over 132 SMs
LOAD_LATENCY_US = 0.8  # from the load of a k step to computing with it
LAUNCH_US = 3.0  # of an empty kernel
# Bytes an SM reads from shared memory while its tensor cores do one 16-bit operation: 128 a cycle
# over 2048 (sm_80), 1024 (sm_86, 89, 120), 4096 (sm_90), 8192 (sm_100) operations a cycle.
SHARED_BYTES_PER_FLOP = {
    80: 1 / 16, 86: 1 / 8, 89: 1 / 8, 90: 1 / 32, 100: 1 / 64, 120: 1 / 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terms:
    """The parts of a predicted time, microseconds."""

    arithmetic: float
    dram: float
    l2: float
    prologue: float
    epilogue: float
    reduction: float
    launch: float

    @property
    def total(self) -> float:
        """The predicted time: L2 hides behind arithmetic, DRAM partly."""
        work = hypot(max(self.arithmetic, self.l2), self.dram)
        return work + self.prologue + self.epilogue + self.reduction + self.launch


def terms(
    config: GemmConfig, problem: GemmProblem, gpu: Gpu, blocks: int, dram_read_bytes: float
) -> Terms:
    """The time of config with `blocks` resident on each SM, reading that much from DRAM."""
    grid_m, grid_n = grid(config, problem)
    items = problem.batch * grid_m * grid_n * config.split_k
    l2_rate = L2_BYTES_PER_SM_US * gpu.num_sms
    touched = (problem.m * grid_n + problem.n * grid_m) * problem.batch * problem.k
    tile_bytes = config.block_m * config.block_n * problem.out_itemsize
    return Terms(
        arithmetic=_arithmetic(config, problem, gpu, blocks, items),
        dram=(dram_read_bytes + dram_write_bytes(problem)) / (DRAM_SHARE * gpu.dram_gbs * 1e3),
        l2=touched * problem.itemsize / l2_rate,
        prologue=LOAD_LATENCY_US,
        epilogue=_bare_epilogues(config, gpu, blocks, items) * tile_bytes / L2_BYTES_PER_SM_US,
        reduction=_partial_bytes(config, problem) / l2_rate,
        launch=LAUNCH_US,
    )


def dram_write_bytes(problem: GemmProblem) -> int:
    """C, written once."""
    return problem.batch * problem.m * problem.n * problem.out_itemsize


def _arithmetic(
    config: GemmConfig, problem: GemmProblem, gpu: Gpu, blocks: int, items: int
) -> float:
    """Rounds of blocks, the last one as full as it is; a partial tile costs a whole one."""
    steps = -(-problem.k // config.block_k // config.split_k)
    step = _step(config, problem, gpu)
    ahead = config.num_stages - 1 if copies_asynchronously(config, problem) else 0
    stall = LOAD_LATENCY_US / ahead if ahead else LOAD_LATENCY_US + step
    whole, rest = divmod(items, blocks * gpu.num_sms)
    last = -(-rest // gpu.num_sms)
    time = whole * max(blocks * step, stall)
    return steps * (time + max(last * step, stall) if rest else time)


def _step(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> float:
    """Microseconds of one k step of a block alone on an SM, its operands in shared memory."""
    flops = 2 * config.block_m * config.block_n * config.block_k
    share = PEAK_SHARE[config.kernel]
    if uses_wgmma(config, problem, gpu):
        shared_elements = config.block_m * (1 + config.block_n / 64)  # B once per 64 rows of A
    else:
        share *= MMA_SYNC_SHARE if gpu.capability == 90 else 1.0
        shared_elements = (config.block_m + config.block_n) * sqrt(config.num_warps)
    shared_bytes = shared_elements * config.block_k * problem.itemsize
    bounds = (
        flops / (share * gpu.rates.tflops(problem.rate)),
        shared_bytes / SHARED_BYTES_PER_FLOP[gpu.capability] / gpu.rates.tflops("fp16"),
    )
    return max(bounds) * gpu.num_sms / 1e6


def _bare_epilogues(config: GemmConfig, gpu: Gpu, blocks: int, items: int) -> int:
    """Epilogues with no arithmetic beside them: the last, or all of a block alone on its SM."""
    if blocks > 1 or config.warp_specialize != "none":
        return 1
    return -(-items // gpu.num_sms)


def _partial_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    """fp32 partial results of a split K, written and read back."""
    if config.split_k == 1:
        return 0
    return 2 * config.split_k * problem.batch * problem.m * problem.n * 4
