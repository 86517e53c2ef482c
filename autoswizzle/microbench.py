"""Measuring what a GPU keeps up, without a profiler: what `autoswizzle calibrate` does."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from statistics import median
from typing import Protocol

import torch

from autoswizzle.calibration import READINGS, Calibration, Reading
from autoswizzle.errors import UnavailableError
from autoswizzle.hardware import MIB, Gpu
from autoswizzle.search.timing import Backend, CudaBackend

REPEATS = 5
SIZES = 29  # working sets tried, from an eighth of the reported L2 to twice it
LEAST_RISE = 1.2  # of the latency, from the L2's to DRAM's, for a capacity to be told
COPY_BYTES = 1024 * MIB
COPIES = 20
EXTENT = 8192  # of the product
WARM_UP_MS = 1500.0  # of products: clocks settle under power within a second
MATMUL_MS = 600.0
STREAM_MS = 5.0
LAUNCHES, REPLAYS = 200, 5  # empty kernels in a captured stream, and its replays in a window
# Captured before launches are timed: from a process's fourth graph on, an H200 takes 1.37 times as
# long from kernel to kernel, in streams too (0.59, then 0.80 us; 2026-11-30).
GRAPHS = 8
WINDOWS = 7
HEAT_MS = 100.0  # of products before each window of launches
STREAM_SHARE = 12  # programs that read the same at once: a wave of 132 tiles is about 12 x 11
STREAM_BLOCK, STREAM_WARPS, STREAM_PROGRAMS = 4096, 4, 4  # int32, warps, programs an SM
CHASE_BLOCK, CHASE_WARPS = 1024, 32  # a line of 128 bytes for each warp


class Probes(Protocol):
    """What is measured of a device, each call once more."""

    def dram_gbs(self) -> float:
        """GB/s read and written by a copy much larger than the L2."""

    def l2_gbs(self) -> float:
        """GB/s that all SMs read of what the L2 holds."""

    def line_ns(self, size: int) -> float:
        """Mean time of a load, ns, while every SM reads the same `size` bytes around."""

    def tflops(self) -> float:
        """TFLOP/s of a large bf16 product, in a steady stream of them."""

    def launch_us(self) -> float:
        """Time of an empty kernel in a stream of them, at the clocks that products settle at."""


def calibrate(gpu: Gpu, probes: Probes, repeats: int = REPEATS) -> Calibration:
    """Measure gpu through probes, everything `repeats` times in turns.

    Products come first: they settle the clocks, which launches and L2 bandwidth go by. Raises
    UnavailableError where no capacity shows.
    """
    sizes = [round(gpu.l2_bytes * 2 ** (4 * i / (SIZES - 1) - 3)) for i in range(SIZES)]
    rounds = [
        {
            "tflops": probes.tflops(),
            "launch_us": probes.launch_us(),
            "dram_gbs": probes.dram_gbs(),
            "l2_gbs": probes.l2_gbs(),
            "l2_effective_bytes": capacity(sizes, [probes.line_ns(size) for size in sizes]),
        }
        for _ in range(repeats)
    ]
    readings = {name: _reading([found[name] for found in rounds]) for name in READINGS}
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Calibration(gpu.name, gpu.num_sms, gpu.l2_bytes, date, **readings)


def capacity(sizes: Sequence[int], line_ns: Sequence[float]) -> float:
    """The working set, bytes, at which half of the loads miss: halfway from L2 to DRAM latency.

    sizes: ascending; the first quarter of them are taken to fit, the last not to. A working set
    read around is what lies between two touches of a line, so this is the capacity by which
    simulator/l2.py centres its edge. Raises UnavailableError where latency does not rise.
    """
    fits = median(line_ns[: max(1, len(sizes) // 4)])
    misses = line_ns[-1]
    if misses < LEAST_RISE * fits:
        raise UnavailableError(
            f"l2_effective_bytes can't be told: a load takes {fits:.0f} ns of {sizes[0]} bytes, "
            f"{misses:.0f} ns of {sizes[-1]}"
        )
    half = (fits + misses) / 2
    points = list(zip(sizes, line_ns, strict=True))
    (low, before), (high, after) = next(
        pair for pair in pairwise(points) if pair[0][1] < half <= pair[1][1]
    )
    return low + (high - low) * (half - before) / (after - before)


def _reading(values: Sequence[float]) -> Reading:
    return Reading(median(values), min(values), max(values))


class CudaProbes:
    """Probes of the current CUDA device; holds 2.5 GiB of it. The first product warms it up."""

    def __init__(self, gpu: Gpu, backend: Backend | None = None) -> None:
        self._gpu = gpu
        self._backend = backend or CudaBackend(gpu.l2_bytes)
        self._copy = [torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2)]
        programs = STREAM_PROGRAMS * gpu.num_sms
        self._zeros = torch.zeros(2 * gpu.l2_bytes // 4, dtype=torch.int32, device="cuda")
        self._sink = torch.empty(programs * STREAM_BLOCK, dtype=torch.int32, device="cuda")
        a, b = (torch.randn(EXTENT, EXTENT, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self._operands = a, b.t(), torch.empty_like(a)
        self._warm = False

    def dram_gbs(self) -> float:
        """See Probes."""
        source, target = self._copy
        taken_us = self._time_us(lambda: target.copy_(source), COPIES)
        return 2 * COPY_BYTES / taken_us / 1e3

    def l2_gbs(self) -> float:
        """See Probes."""
        from autoswizzle.kernels.probes import stream

        programs = STREAM_PROGRAMS * self._gpu.num_sms
        chunks = max(1, self._gpu.l2_bytes // 8 // (4 * STREAM_BLOCK))
        apart = max(1, chunks * STREAM_SHARE // programs)

        def read(passes: int) -> None:
            stream[(programs,)](
                self._zeros, self._sink, chunks, passes * chunks, APART=apart, SHARE=STREAM_SHARE,
                BLOCK=STREAM_BLOCK, num_warps=STREAM_WARPS,
            )  # fmt: skip

        passes = self._count(self._time_us(lambda: read(1), 1), STREAM_MS)
        taken_us = self._time_us(lambda: read(passes), 1)
        return passes * programs * chunks * STREAM_BLOCK * 4 / taken_us / 1e3

    def line_ns(self, size: int) -> float:
        """See Probes."""
        from autoswizzle.kernels.probes import chase

        chunks = size // (4 * CHASE_BLOCK)

        def read(passes: int) -> None:
            chase[(self._gpu.num_sms,)](
                self._zeros, self._sink, chunks, passes, BLOCK=CHASE_BLOCK, num_warps=CHASE_WARPS
            )

        return self._time_us(lambda: read(2), 1) / (2 * chunks) * 1e3

    def tflops(self) -> float:
        """See Probes."""
        once_us = self._time_us(self._multiply, 1)
        if not self._warm:
            self._time_us(self._multiply, self._count(once_us, WARM_UP_MS))
            self._warm = True
        count = self._count(once_us, MATMUL_MS)
        return 2 * EXTENT**3 / self._time_us(self._multiply, count) / 1e6

    def launch_us(self) -> float:
        """See Probes: the median of windows, each queued right behind products.

        Products settle the clocks, and behind queued work the device does not wait for the host.
        """
        from autoswizzle.kernels.probes import nothing

        launch = nothing[(1,)]
        launch()  # compiled before it is captured
        for _ in range(GRAPHS):
            replay = self._backend.capture([launch] * LAUNCHES)
            replay()  # uploaded before it is timed
        products = self._count(self._time_us(self._multiply, 1), HEAT_MS)
        windows = []
        for _ in range(WINDOWS):
            for _ in range(products):
                self._multiply()
            start = self._backend.record()
            for _ in range(REPLAYS):
                replay()
            windows.append((start, self._backend.record()))
        self._backend.synchronize()
        return median(a.elapsed_time(b) for a, b in windows) * 1e3 / (REPLAYS * LAUNCHES)

    def _multiply(self) -> None:
        a, b, out = self._operands
        torch.matmul(a, b, out=out)

    def _time_us(self, call: Callable[[], object], count: int) -> float:
        """Device time of one of count calls in a row, after one that is not counted."""
        call()
        start = self._backend.record()
        for _ in range(count):
            call()
        end = self._backend.record()
        self._backend.synchronize()
        return start.elapsed_time(end) * 1e3 / count

    @staticmethod
    def _count(once_us: float, budget_ms: float) -> int:
        return max(1, math.ceil(1e3 * budget_ms / once_us))
