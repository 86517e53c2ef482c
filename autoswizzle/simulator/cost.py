"""The time model: where the microseconds of a launch go.

A launch runs in rounds of SMs x resident blocks, the last one as full as it is. In a round the
blocks of an SM share its tensor cores, and each waits for its loads. What can bound a launch
(arithmetic, L2, DRAM) hides the rest, never all of it: bounds add up as a root of powers. Around
the k loop of each tile are the filling of the pipeline, and the stores of its result where nothing
computes beside them.
"""

import itertools
import math
from dataclasses import dataclass

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import WARP_SIZE, Gpu
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.simulator.resources import copies_asynchronously, uses_wgmma
from autoswizzle.space import cluster_size, grid, multiplied, pieces, tail

SPECIALIZED = ("wgmma", "multicast")  # kernels whose warps are split, whose block_n is of pieces
MMA_SYNC_SHARE = 0.6  # of what wgmma reaches, on GPUs that have it
# Bytes an SM reads from shared memory while its tensor cores do one 16-bit operation: 128 a cycle
# over 2048 (sm_80), 1024 (sm_86, 89, 120), 4096 (sm_90), 8192 (sm_100) operations a cycle.
SHARED_BYTES_PER_FLOP = {
    80: 1 / 16, 86: 1 / 8, 89: 1 / 8, 90: 1 / 32, 100: 1 / 64, 120: 1 / 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What the model takes from measurements; benchmarks/fit_time_model.py fits it.

    pointer, tma, mma_sync: share of what torch.matmul keeps up (Gpu.sustained) that products of the
    family reach; none, cooperative, pingpong: those of wgmma and multicast, by warp_specialize.
    serial_share: of that, in wgmma without specialised warps on a block_n of two pieces, whose
    products do not overlap. step_us: of a k step beside its products. load_latency_us: from the
    load of a k step to computing with it. l2_share: of Gpu.sustained.l2_gbs, that loads of tiles
    draw. l2_overlap, dram_overlap: exponents of the root of powers in which L2 and DRAM time join
    arithmetic; 1 hides nothing, infinity all but the longest. store_bytes_per_sm_us: of a result
    that nothing computes beside. partial_bytes_per_sm_us: of partial sums of a split K, written and
    read back by one SM. spill_bytes_per_sm_us: of spilled registers, written and read back in every
    k step.
    """

    pointer: float
    tma: float
    mma_sync: float
    none: float
    cooperative: float
    pingpong: float
    serial_share: float
    step_us: float
    load_latency_us: float
    l2_share: float
    l2_overlap: float
    dram_overlap: float
    store_bytes_per_sm_us: float
    partial_bytes_per_sm_us: float
    spill_bytes_per_sm_us: float


# Fitted to 880 random configurations of four problems (suite.FITTING, bf16 nt) on an H200,
# 2026-11-30. On the 20 other problems of results/h200/tables: rank correlation 0.94 in the median
# (docs/predictor.md). Shares above 1: the k step's own time is counted apart.
FITTED = Coefficients(
    pointer=0.98, tma=1.22, mma_sync=0.50, none=1.29, cooperative=1.31, pingpong=1.50,
    serial_share=0.78, step_us=0.081, load_latency_us=0.62, l2_share=1.09, l2_overlap=12.0,
    dram_overlap=2.58, store_bytes_per_sm_us=123_000, partial_bytes_per_sm_us=51_800,
    spill_bytes_per_sm_us=30_400,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terms:
    """The parts of a predicted time, microseconds: they add up to it.

    hidden: below 0, what the bounds (arithmetic, dram, l2) save by running side by side. padding:
    copies to padded rows and back, each a launch.
    """

    arithmetic: float
    dram: float
    l2: float
    hidden: float
    prologue: float
    epilogue: float
    reduction: float
    padding: float
    launch: float

    @property
    def total(self) -> float:
        """The predicted time."""
        return math.fsum(getattr(self, name) for name in self.__slots__)


def terms(
    config: GemmConfig,
    problem: GemmProblem,
    gpu: Gpu,
    blocks: int,
    dram_read_bytes: float,
    fitted: Coefficients = FITTED,
    spill_bytes: int = 0,
) -> Terms:
    """The time of config with `blocks` resident on each SM, reading that much from DRAM.

    spill_bytes: of a thread.
    """
    grid_m, grid_n = grid(config, problem)
    phases = _phases(config, problem, gpu)
    rounds = sum(-(-phase.items // _slots(config, gpu, blocks)) for phase in phases)
    touched = (problem.m * grid_n + problem.n * grid_m) * problem.batch * problem.k
    kept_up = gpu.sustained
    arithmetic = sum(
        _arithmetic(config, problem, gpu, blocks, phase, spill_bytes, fitted) for phase in phases
    )
    dram = (dram_read_bytes + dram_write_bytes(problem)) / (kept_up.dram_gbs * 1e3)
    l2 = touched * problem.itemsize / (fitted.l2_share * kept_up.l2_gbs * 1e3)
    on_chip = _together(arithmetic, l2, fitted.l2_overlap)
    bound = _together(on_chip, dram, fitted.dram_overlap)
    exposed = rounds if blocks == 1 and config.warp_specialize != "pingpong" else 1
    tile = config.block_m * config.block_n
    store_us = tile * problem.out_itemsize / fitted.store_bytes_per_sm_us
    return Terms(
        arithmetic=arithmetic,
        dram=dram,
        l2=l2,
        hidden=bound - (arithmetic + dram + l2),
        prologue=fitted.load_latency_us,
        epilogue=exposed * store_us,
        reduction=sum(_partials(config, phase, blocks, gpu) for phase in phases)
        * tile
        * 4
        / fitted.partial_bytes_per_sm_us,
        padding=_padding(problem, gpu) if config.padded else 0.0,
        launch=kept_up.launch_us,
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """Work items of equal k steps; a tile is made of `parts`."""

    items: int
    steps: int
    parts: float


def _phases(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> list[Phase]:
    """The work items in the order they are taken."""
    grid_m, grid_n = grid(config, problem)
    tiles = problem.batch * grid_m * grid_n
    steps = -(-problem.k // config.block_k)

    if not config.stream_k:
        return [Phase(tiles * config.split_k, -(-steps // config.split_k), config.split_k)]
    whole, together, parts = tail(config, problem, gpu.num_sms)
    shared = -(-(tiles - whole) // together) * parts
    return [Phase(whole, steps, 1), Phase(shared, -(-steps * together // parts), parts / together)]


def dram_write_bytes(problem: GemmProblem) -> int:
    """C, written once."""
    return problem.batch * problem.m * problem.n * problem.out_itemsize


def _padding(problem: GemmProblem, gpu: Gpu) -> float:
    """Reading and writing each matrix that TMA can't address: all three, if only bases are odd, C
    alone where operands are aligned.
    """
    inner_a = problem.k if problem.layout[0] == "n" else problem.m
    inner_b = problem.n if problem.layout[1] == "n" else problem.k
    matrices = (
        (inner_a, problem.m * problem.k, problem.itemsize),
        (inner_b, problem.k * problem.n, problem.itemsize),
        (problem.n, problem.m * problem.n, problem.out_itemsize),
    )
    copied = [
        elements * itemsize
        for inner, elements, itemsize in matrices[2 if problem.aligned else 0 :]
        if inner * itemsize % ALIGNMENT
    ] or [elements * itemsize for _, elements, itemsize in matrices]
    moved = 2 * problem.batch * sum(copied)
    return moved / (gpu.sustained.dram_gbs * 1e3) + len(copied) * gpu.sustained.launch_us


def _arithmetic(
    config: GemmConfig,
    problem: GemmProblem,
    gpu: Gpu,
    blocks: int,
    phase: Phase,
    spill_bytes: int,
    fitted: Coefficients,
) -> float:
    """Rounds of blocks, the last one as full as it is; a partial tile costs a whole one.

    A round takes as long as its products, or as the loads of a block over the k steps in flight.
    """
    spilled = 2 * spill_bytes * WARP_SIZE * config.num_warps
    step = _step(config, problem, gpu, fitted)
    step += spilled / fitted.spill_bytes_per_sm_us
    rows, columns = config.block_m / config.cluster_n, config.block_n / config.cluster_m
    step_bytes = (rows + columns) * config.block_k * problem.itemsize
    l2_bytes_per_sm_us = fitted.l2_share * gpu.sustained.l2_gbs * 1e3 / gpu.num_sms
    load = fitted.load_latency_us + step_bytes / l2_bytes_per_sm_us
    ahead = _steps_ahead(config, problem)

    def round_us(resident: int) -> float:
        if not ahead:
            return max(resident * step, load + step)
        return _together(resident * step, load / ahead, fitted.l2_overlap)

    whole, rest = divmod(phase.items, _slots(config, gpu, blocks))
    last = -(-rest // _slots(config, gpu, 1))
    return phase.steps * (whole * round_us(blocks) + (round_us(last) if rest else 0))


def _steps_ahead(config: GemmConfig, problem: GemmProblem) -> int:
    """Steps of k that are loaded while one is multiplied."""
    if config.kernel == "skinny":
        return 1
    return config.num_stages - 1 if copies_asynchronously(config, problem) else 0


def _step(config: GemmConfig, problem: GemmProblem, gpu: Gpu, fitted: Coefficients) -> float:
    """Microseconds of one k step of a block alone on an SM, its operands there."""
    if config.kernel == "gemv":
        # an element of b is converted once, then multiplied and added in each row
        flops = 2 * (1 + config.block_m) * config.block_n * config.block_k
        return flops * gpu.num_sms / (gpu.rates.tflops("fp32") * 1e6)
    share = gpu.sustained.peak_share * _share(config, fitted)
    rows, columns = multiplied(config)
    if uses_wgmma(config, problem, gpu):
        widths = pieces(config) if config.kernel in SPECIALIZED else (columns,)
        # B once per 64 rows of A
        products = [(width, rows * (1 + width / 64)) for width in widths]
    else:
        share *= MMA_SYNC_SHARE if gpu.capability == 90 else 1.0
        # skinny loads its operands to registers
        read = 0 if config.kernel == "skinny" else rows + columns
        products = [(columns, read * math.sqrt(config.num_warps))]
    shared_bytes_per_us = SHARED_BYTES_PER_FLOP[gpu.capability] * gpu.rates.tflops("fp16") * 1e6
    flops_per_us = share * gpu.rates.tflops(problem.rate) * 1e6

    def product(columns: int, shared_elements: float) -> float:
        flops = 2 * rows * columns * config.block_k
        shared_bytes = shared_elements * config.block_k * problem.itemsize
        return max(flops / flops_per_us, shared_bytes / shared_bytes_per_us)

    return fitted.step_us + sum(itertools.starmap(product, products)) * gpu.num_sms


def _share(config: GemmConfig, fitted: Coefficients) -> float:
    """Of the sustained rate, that the products of this kernel reach."""
    if config.kernel == "skinny":  # none of its own is fitted; few rows are mma.sync's there, too
        return fitted.pointer
    if config.kernel not in SPECIALIZED:
        return float(getattr(fitted, config.kernel))
    serial = config.warp_specialize == "none" and len(pieces(config)) > 1
    share = float(getattr(fitted, config.warp_specialize))
    return share * fitted.serial_share if serial else share


def _together(one: float, other: float, overlap: float) -> float:
    """The time of two bounds that partly hide each other: a root of the sum of powers."""
    longest = max(one, other)
    return float(longest * (1 + (min(one, other) / longest) ** overlap) ** (1 / overlap))


def _slots(config: GemmConfig, gpu: Gpu, blocks: int) -> int:
    """Work items that `blocks` resident on each SM take at once: a cluster's blocks are one."""
    return blocks * gpu.num_sms // cluster_size(config)


def _partials(config: GemmConfig, phase: Phase, blocks: int, gpu: Gpu) -> float:
    """Partial sums of tiles that an SM moves: it writes its own, or adds those of a tile."""
    if phase.parts == 1:
        return 0
    return -(-phase.items // _slots(config, gpu, blocks)) * blocks * phase.parts
