"""Timers: one call with a cold cache (burst), a steady stream of calls (sustained), several
candidates in turns (interleaved). Durations are microseconds of device time.

The device is reached through Backend, so the timers run on a simulated one without a GPU.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import torch

from autoswizzle.search.statistics import checked

Call = Callable[[], None]

MIN_SAMPLES = 8
MAX_SAMPLES = 250  # 4 queue entries each: the launch queue (about 1,000) never blocks the host
REPLAY_US = 1000.0  # a graph lasts at least this long, so that its own launch (~10 us) is < 1 %
MAX_GRAPH_CALLS = 512
WARM_UP_MS = 300.0  # of turns that are not counted: the clocks settle under power
LEAST_ROUNDS = 3  # of turns, by which the fastest of many is picked
LEAST_OF_A_PAIR = 6  # whose ratio is judged by its interval: fewer have none of 95 % (statistics)


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a contender runs before the next one does, in milliseconds; settling_ms of it come
    first and do not count.
    """

    settling_ms: float
    counted_ms: float


# On an H200 at its power limit the clock dips by up to 20 % for 100 ms, whatever runs, and takes
# about 80 ms to follow a change of kernel (settling.json, 2026-11-30). In short turns all
# contenders share each clock: ratios are sharp, but what one draws less speeds up all. In long ones
# each runs at its own clock, as where it runs alone, and ratios scatter by several percent.
SHORT = Turn(0.0, 4.0)
LONG = Turn(80.0, 40.0)


class Stamp(Protocol):
    """A time stamp in a device's queue, such as a torch.cuda.Event."""

    def elapsed_time(self, end: Any, /) -> float:  # noqa: ANN401 - one of its own kind
        """Milliseconds of device time from here to end, once both have passed."""


class Backend(Protocol):
    """What the timers need of a device with an in-order queue."""

    def now_us(self) -> float:
        """The host's clock."""

    def record(self) -> Stamp:
        """Put a time stamp in the queue."""

    def flush(self) -> None:
        """Queue a write of at least twice the L2, so that nothing the caller uses stays in it."""

    def synchronize(self) -> None:
        """Wait for the queue to drain."""

    def capture(self, calls: Sequence[Call]) -> Call:
        """Record calls once; the result replays them in one launch."""


class CudaBackend:
    """The CUDA device that is current at construction, its current stream.

    l2_bytes: the L2 as reported; the flush buffer is twice as large.
    """

    def __init__(self, l2_bytes: int) -> None:
        self._flushed = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")

    def now_us(self) -> float:
        """The host's clock."""
        return time.perf_counter() * 1e6

    def record(self) -> Stamp:
        """Queue a CUDA event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def flush(self) -> None:
        """Queue a write of twice the L2."""
        self._flushed.zero_()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def capture(self, calls: Sequence[Call]) -> Call:
        """Record calls into a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph.replay


@dataclass(frozen=True, slots=True)
class Samples:
    """Durations of one call in microseconds, in the order they were taken.

    host_us: median host time to issue the call. host_bound: the device waited for the host inside
    the timed windows, so the durations are too long. launches: calls behind the durations.
    """

    times_us: tuple[float, ...]
    host_us: float
    host_bound: bool
    launches: int


def burst(call: Call, backend: Backend, budget_ms: float, *, flush: bool = True) -> Samples:
    """Event timing of single calls, each after a flush of the L2 that is outside the window.

    The first call, which may compile, is not timed.
    """
    call()
    backend.synchronize()
    began = backend.now_us()
    _burst(call, backend, 3, flush)
    count = _clamp(1e3 * budget_ms / ((backend.now_us() - began) / 3))
    return _burst(call, backend, count, flush)


def _burst(call: Call, backend: Backend, count: int, flush: bool) -> Samples:
    stamps, hosts = [], []
    began = backend.now_us()
    for _ in range(count):
        before = backend.record()
        if flush:
            backend.flush()
        start = backend.record()
        issued = backend.now_us()
        call()
        hosts.append(backend.now_us() - issued)
        stamps.append((before, start, backend.record()))
    issuing_us = backend.now_us() - began
    backend.synchronize()
    times = [_elapsed_us(start, end) for _, start, end in stamps]
    cover_us = median(_elapsed_us(before, start) for before, start, _ in stamps)
    busy_us = _elapsed_us(stamps[0][0], stamps[-1][2])
    # The host is late for a window only if issuing the call outlasts the flush before it, and if
    # no queue built up: issuing everything then took as long as running it.
    late = median(hosts) > cover_us and issuing_us > 0.9 * busy_us
    return Samples(tuple(checked(times)), median(hosts), late, count)


@dataclass(frozen=True, slots=True)
class Loop:
    """Calls captured into one replayable launch that lasts a millisecond or more.

    host_us: median host time to issue one call eagerly. time_us: device time of one call.
    """

    replay: Call
    calls: int
    time_us: float
    host_us: float


def loop(calls: Sequence[Call], backend: Backend) -> Loop:
    """Capture calls (one for each buffer set, in turn) into a Loop; compiles and warms up first."""
    hosts = []  # three calls or more: the first, which may compile, is not the median
    for call in [*calls, *calls, *calls][: max(3, len(calls))]:
        issued = backend.now_us()
        call()
        hosts.append(backend.now_us() - issued)
    backend.synchronize()
    replay = backend.capture(calls)
    pass_us = _replayed(replay, backend, 1)[0]
    passes = min(math.ceil(REPLAY_US / pass_us), max(1, MAX_GRAPH_CALLS // len(calls)))
    if passes > 1:
        replay = backend.capture([*calls] * passes)
    return Loop(replay, passes * len(calls), pass_us / len(calls), median(hosts))


def sustained(looped: Loop, backend: Backend, budget_ms: float) -> Samples:
    """Back-to-back calls over rotated buffers, as one captured graph replayed again and again."""
    count = _clamp(1e3 * budget_ms / (looped.time_us * looped.calls))
    times = [us / looped.calls for us in _replayed(looped.replay, backend, count)]
    return Samples(tuple(checked(times)), looped.host_us, False, count * looped.calls)


def interleaved(
    loops: Sequence[Loop], backend: Backend, budget_ms: float, turn: Turn = SHORT
) -> list[tuple[float, ...]]:
    """For each loop, its time a call in every round; the loops run in turns, A B C, C B A, A B C.

    budget_ms: for each loop. A linear drift of the clocks hits the loops alike over two rounds.
    """
    settling = [round(_replays(item, turn.settling_ms)) for item in loops]
    counted = [counted_replays(item, turn) for item in loops]
    calls = [count * item.calls for count, item in zip(counted, loops, strict=True)]
    round_us = sum(
        (before + count) * item.calls * item.time_us
        for before, count, item in zip(settling, counted, loops, strict=True)
    )

    def take_turn(place: int) -> tuple[Stamp, Stamp]:
        for _ in range(settling[place]):
            loops[place].replay()
        began = backend.record()
        for _ in range(counted[place]):
            loops[place].replay()
        return began, backend.record()

    warm_up = math.ceil(1e3 * WARM_UP_MS / round_us)
    least = LEAST_ROUNDS if len(loops) > 2 else LEAST_OF_A_PAIR
    rounds = max(least, round(1e3 * budget_ms * len(loops) / round_us))
    places = range(len(loops))
    turns: list[dict[int, tuple[Stamp, Stamp]]] = []
    for number in range(warm_up + rounds):
        order = reversed(places) if number % 2 else places
        turns.append({place: take_turn(place) for place in order})
    backend.synchronize()
    return [
        tuple(checked([_elapsed_us(*each[place]) / calls[place] for each in turns[warm_up:]]))
        for place in places
    ]


def counted_replays(item: Loop, turn: Turn) -> int:
    """How many replays of a turn count, at least one."""
    return max(1, round(_replays(item, turn.counted_ms)))


def _replays(item: Loop, ms: float) -> float:
    return 1e3 * ms / (item.time_us * item.calls)


def _replayed(replay: Call, backend: Backend, count: int) -> Sequence[float]:
    """Device time of each of count replays, after one that is not counted."""
    replay()
    stamps = [backend.record()]
    for _ in range(count):
        replay()
        stamps.append(backend.record())
    backend.synchronize()
    return checked([_elapsed_us(*pair) for pair in pairwise(stamps)])


def _elapsed_us(start: Stamp, end: Stamp) -> float:
    return start.elapsed_time(end) * 1e3


def _clamp(count: float) -> int:
    return int(min(max(count, MIN_SAMPLES), MAX_SAMPLES))
