"""The timers on a simulated device: an in-order queue with a host that feeds it."""

from itertools import pairwise
from statistics import median

import pytest
import torch

from autoswizzle.errors import LaunchError
from autoswizzle.search.timing import (
    LONG,
    MIN_SAMPLES,
    WARM_UP_MS,
    CudaBackend,
    Loop,
    Turn,
    burst,
    counted_replays,
    interleaved,
    loop,
    sustained,
)


class Stamp:
    def __init__(self, at_us):
        self.at_us = at_us

    def elapsed_time(self, end):
        return (end.at_us - self.at_us) / 1e3


class FakeDevice:
    """Host time and the time at which the queue will be empty, both in microseconds."""

    def __init__(self, flush_us=40.0):
        self.host = self.empty_at = 0.0
        self.flush_us = flush_us
        self.flushes = 0
        self.captured = None

    def launch(self, device_us, host_us=4.0):
        if self.captured is not None:
            self.captured.append(device_us)
            return
        self.host += host_us
        self.empty_at = max(self.host, self.empty_at) + device_us

    def now_us(self):
        return self.host

    def record(self):
        self.host += 1
        self.empty_at = max(self.host, self.empty_at)
        return Stamp(self.empty_at)

    def flush(self):
        self.flushes += 1
        self.launch(self.flush_us)

    def synchronize(self):
        self.host = max(self.host, self.empty_at)

    def capture(self, calls):
        self.captured = recorded = []
        for call in calls:
            call()
        self.captured = None
        return lambda: self.launch(sum(recorded), host_us=10)


BROKEN = [0.0, float("nan"), float("inf"), -1.0]


def steady(call, device, budget_ms):
    return sustained(loop([call], device), device, budget_ms)


def test_burst_leaves_the_flush_out():
    device = FakeDevice()
    flushed = burst(lambda: device.launch(50), device, 5)
    assert device.flushes >= len(flushed.times_us) >= MIN_SAMPLES
    device = FakeDevice()
    plain = burst(lambda: device.launch(50), device, 5, flush=False)
    assert device.flushes == 0
    assert median(flushed.times_us) == pytest.approx(50, abs=1)
    assert abs(median(flushed.times_us) - median(plain.times_us)) < 5
    assert not flushed.host_bound
    assert not plain.host_bound
    assert flushed.host_us == 4


def test_the_flush_writes_twice_the_l2(monkeypatch):  # T05
    made, empty = [], torch.empty

    def on_cpu(size, *, dtype, device):
        made.append(empty(size, dtype=dtype).fill_(1))
        return made[-1]

    monkeypatch.setattr(torch, "empty", on_cpu)
    CudaBackend(3 * 2**20).flush()
    assert [buffer.nbytes for buffer in made] == [2 * 3 * 2**20]
    assert not made[0].any()


def test_burst_marks_times_that_waited_for_the_host():
    device = FakeDevice()
    samples = burst(lambda: device.launch(50, host_us=1000), device, 5)
    assert samples.host_bound
    assert samples.host_us == 1000


def test_a_slow_host_does_not_matter_while_the_queue_is_full():
    device = FakeDevice()
    samples = burst(lambda: device.launch(500, host_us=60), device, 50)
    assert not samples.host_bound  # issuing a call outlasts the flush, but the device lags behind
    assert median(samples.times_us) == pytest.approx(500, abs=2)


@pytest.mark.parametrize("timer", [burst, steady])
def test_every_launch_of_a_call_is_in_the_window(timer):  # T02: a zeroed counter, a reduction
    device = FakeDevice()

    def call():
        for us in (3, 50, 17):
            device.launch(us, host_us=1)

    assert median(timer(call, device, 5).times_us) == pytest.approx(70, abs=2)


def test_every_launch_of_a_contender_is_in_its_turn():
    device = FakeDevice()

    def split():
        device.launch(60, host_us=1)
        device.launch(60, host_us=1)

    loops = [loop([split], device), loop([lambda: device.launch(110)], device)]
    split_us, whole_us = (median(times) for times in interleaved(loops, device, 20))
    assert (split_us, whole_us) == (pytest.approx(120, rel=0.01), pytest.approx(110, rel=0.01))


@pytest.mark.parametrize("timer", [burst, steady])
def test_a_cold_compile_is_not_timed(timer):
    device = FakeDevice()
    costs = iter([2_000_000.0])

    def call():
        device.host += next(costs, 0.0)
        device.launch(50)

    samples = timer(call, device, 5)
    assert max(samples.times_us) < 55
    assert samples.host_us < 10


def test_the_budget_bounds_the_samples():
    for device_us in (1.0, 100.0, 30_000.0):
        device = FakeDevice()
        burst(lambda us=device_us, device=device: device.launch(us), device, 20)
        assert device.empty_at < 60_000 + 20 * device_us
        device = FakeDevice()
        steady(lambda us=device_us, device=device: device.launch(us), device, 20)
        assert device.empty_at < 60_000 + 20 * device_us


def test_sustained_rotates_through_all_buffers_and_hides_the_host():
    device = FakeDevice()
    used = []

    def use(buffer):
        used.append(buffer)
        device.launch(5 + buffer, host_us=60)

    calls = [lambda buffer=buffer: use(buffer) for buffer in range(4)]
    samples = sustained(loop(calls, device), device, 10)
    assert set(used) == {0, 1, 2, 3}
    # The graph's own launch, 10 us of a host that is otherwise idle, is spread over many calls.
    assert samples.times_us == pytest.approx([6.5] * len(samples.times_us), rel=0.02)
    assert samples.host_us == 60
    assert samples.launches >= 4 * len(samples.times_us)
    assert not samples.host_bound


@pytest.mark.parametrize("timer", [burst, steady])
@pytest.mark.parametrize("reading", BROKEN)
def test_a_broken_clock_is_refused(monkeypatch, timer, reading):
    device = FakeDevice()
    monkeypatch.setattr(Stamp, "elapsed_time", lambda *_: reading)
    with pytest.raises(LaunchError, match="finite and above 0"):
        timer(lambda: device.launch(50), device, 5)


@pytest.mark.parametrize("reading", BROKEN)
def test_one_broken_reading_of_a_race_is_refused(monkeypatch, reading):
    device = FakeDevice()
    loops = [loop([lambda: device.launch(50)], device) for _ in range(2)]
    readings = iter([5.0, 5.0, 5.0, reading])
    monkeypatch.setattr(Stamp, "elapsed_time", lambda *_: next(readings, 5.0))
    with pytest.raises(LaunchError, match="finite and above 0"):
        interleaved(loops, device, 50)


def test_interleaved_turns_cancel_a_linear_drift():
    device = FakeDevice()
    slower = [0.0]

    def call(us):
        slower[0] += 0.01  # every launch takes longer than the one before
        device.launch(us + slower[0])

    class Drifting(FakeDevice):
        def capture(self, calls):
            return lambda: [one() for one in calls]

    device = Drifting()
    loops = [loop([lambda us=us: call(us)], device) for us in (1000.0, 1000.0, 1000.0)]
    rounds = interleaved(loops, device, 50, Turn(2, 2))
    assert {len(times) for times in rounds} == {len(rounds[0])}
    assert len(rounds[0]) >= MIN_SAMPLES
    pairs = [[sum(two) for two in pairwise(times)] for times in rounds]
    for first, second, third in zip(*pairs, strict=True):
        assert first == pytest.approx(second, rel=1e-9)
        assert first == pytest.approx(third, rel=1e-9)
    assert rounds[0][-1] > rounds[0][0] * 1.001  # the drift itself is there


def test_a_long_turn_lets_the_clock_follow():
    class Throttling(FakeDevice):
        """Its clock follows the heat of what runs: the hot kernel's falls, within 20 ms."""

        def __init__(self):
            super().__init__()
            self.clock = 1.0

        def launch(self, us, hot=False):
            self.clock += ((0.9 if hot else 1.0) - self.clock) * min(1.0, us / 20_000)
            super().launch(us / self.clock)

        def capture(self, calls):
            return lambda: [call() for call in calls]

    device = Throttling()
    loops = [loop([lambda hot=hot: device.launch(1000, hot)], device) for hot in (False, True)]
    assert [item.calls for item in loops] == [1, 1]
    ratios = {}
    for turn_ms in (1, 100):
        cool, hot = interleaved(loops, device, 1200, Turn(turn_ms, turn_ms))
        ratios[turn_ms] = median(hot) / median(cool)
    assert ratios[1] == pytest.approx(1.0, abs=0.01)  # at one clock
    assert 1.1 < ratios[100] < 1 / 0.9  # each at its own
    assert len(cool) == len(hot) == 6


def test_the_start_of_a_turn_does_not_count():
    device = FakeDevice()
    since: dict[float, int] = {100.0: 0, 200.0: 0}

    class Settling(FakeDevice):
        """What runs anew is slow for 75 ms."""

        def capture(self, calls):
            return lambda: [call() for call in calls]

    def launch(us):
        for other in since:
            since[other] = since[other] + 1 if other == us else 0
        device.launch(us if since[us] * us > 75_000 else 3 * us)

    device = Settling()
    loops = [Loop(lambda us=us: launch(us), 1, us, 1.0) for us in since]
    rounds = interleaved(loops, device, 200, LONG)
    assert [set(times) for times in rounds] == [{100.0}, {200.0}]
    assert [counted_replays(item, LONG) for item in loops] == [400, 200]
    assert len(rounds[0]) == len(rounds[1]) == 6


@pytest.mark.parametrize(("contenders", "rounds"), [(1, 6), (2, 6), (3, 3), (6, 3)])
def test_calls_longer_than_a_turn_have_rounds_enough(contenders, rounds):
    """The ratio of a pair is judged by an interval of 95 %, which needs six."""
    device = FakeDevice()
    calls = [lambda: device.launch(100_000)]
    found = interleaved([loop(calls, device) for _ in range(contenders)], device, 250)
    assert [len(times) for times in found] == contenders * [rounds]
    assert [median(times) for times in found] == pytest.approx(contenders * [100_000])


def test_interleaved_tells_contenders_apart():
    device = FakeDevice()
    loops = [loop([lambda us=us: device.launch(us)], device) for us in (200.0, 100.0, 5000.0)]
    assert [item.calls for item in loops] == [5, 10, 1]
    began = device.now_us()
    rounds = interleaved(loops, device, 20, Turn(0, 2))
    assert device.now_us() - began > 1e3 * (WARM_UP_MS + 20)  # clocks settle first
    assert [median(times) for times in rounds] == pytest.approx([200, 100, 5000], rel=1e-3)
