"""Measuring configurations of one problem on one device: check the product, then time it."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ArgumentError, check_choice
from autoswizzle.hardware import Gpu
from autoswizzle.operands import torch_matmul
from autoswizzle.problem import GemmProblem
from autoswizzle.search.clocks import ClockLog, Clocks
from autoswizzle.search.inputs import (
    Reference,
    check,
    float32_precision,
    make_inputs,
    make_output,
)
from autoswizzle.search.statistics import DRIFT_LIMIT, checked, drift, median_interval
from autoswizzle.search.timing import (
    SHORT,
    Backend,
    Call,
    CudaBackend,
    Loop,
    Samples,
    Turn,
    burst,
    counted_replays,
    interleaved,
    loop,
    sustained,
)

__all__ = [
    "Measurement",
    "Measurer",
    "Race",
    "Reference",
    "burst",
    "check",
    "interleaved",
    "make_inputs",
    "make_output",
    "sustained",
]

METHODS = ("sustained", "burst")
ROTATION = 3  # the buffers cycled through hold this many times the L2
MAX_BUFFER_SETS = 256  # a problem below L2 / 85 is served from the L2, in real use as well

Run = Callable[[GemmConfig, GemmProblem, torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one configuration takes on the device.

    time_us: median; low_us..high_us: its 95 % confidence interval. method: sustained or burst.
    launches: calls timed. host_us: host time to issue one call. drift: relative change from the
    first to the last quarter of the samples. host_bound: the device waited for the host, so the
    time is too long. sm_mhz, power_w: during the timing, None if unknown.
    Raises LaunchError for a duration that is 0, NaN or infinite.
    """

    config: GemmConfig
    time_us: float
    low_us: float
    high_us: float
    method: str
    launches: int = 1
    host_us: float | None = None
    drift: float = 0.0
    host_bound: bool = False
    sm_mhz: float | None = None
    power_w: float | None = None

    def __post_init__(self) -> None:
        checked((self.time_us, self.low_us, self.high_us))

    @property
    def drifting(self) -> bool:
        """Whether clocks or neighbours moved too far for the time to be trusted."""
        return abs(self.drift) > DRIFT_LIMIT

    def tflops(self, problem: GemmProblem) -> float:
        """Achieved TFLOP/s."""
        return problem.flops / self.time_us / 1e6

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of every field."""
        return {**asdict(self), "config": self.config.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Measurement":
        """Inverse of to_dict; raises ArgumentError on a missing or unknown field."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not {"config", "time_us"} <= set(data) <= names:
            raise ArgumentError(
                f"measurement must have fields of {', '.join(sorted(names))}, got {data!r}"
            )
        return cls(**{**data, "config": GemmConfig.from_dict(data["config"])})

    @classmethod
    def from_samples(
        cls, config: GemmConfig, method: str, samples: Samples, clocks: Clocks | None = None
    ) -> "Measurement":
        """The summary of a timer's samples."""
        time_us, low_us, high_us = median_interval(samples.times_us)
        return cls(
            config,
            time_us,
            low_us,
            high_us,
            method,
            samples.launches,
            samples.host_us,
            drift(samples.times_us),
            samples.host_bound,
            **({} if clocks is None else asdict(clocks)),
        )


@dataclass(frozen=True, slots=True)
class Race:
    """Configurations timed in turns: measurements[i] sums up rounds_us[i], a time each round."""

    measurements: tuple[Measurement, ...]
    rounds_us: tuple[tuple[float, ...], ...]

    def ratio(self, place: int = 1) -> tuple[float, float, float]:
        """The time of the configuration at place over that of the first: the median over the
        rounds, and its 95 % confidence interval.
        """
        pairs = zip(self.rounds_us[0], self.rounds_us[place], strict=True)
        return median_interval([theirs / ours for ours, theirs in pairs])


class Measurer:
    """Times configurations of one problem on the current CUDA device.

    run(config, problem, a, b, out) launches a kernel on the current stream; torch itself is
    called directly. backend: the device, a CudaBackend by default.
    """

    def __init__(
        self,
        problem: GemmProblem,
        gpu: Gpu,
        run: Run,
        *,
        device: torch.device | str = "cuda",
        seed: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self._problem = problem
        self._run = run
        self._device = device
        self._backend = backend or CudaBackend(gpu.l2_bytes)
        a, b = make_inputs(problem, device, seed)
        self._reference = Reference(problem, a, b)
        sets = min(math.ceil(ROTATION * gpu.l2_bytes / problem.min_bytes), MAX_BUFFER_SETS)
        self._buffers = [(a, b, make_output(problem, device))]
        for _ in range(1, sets):
            copies = make_inputs(problem, device, seed)
            self._buffers.append((*copies, make_output(problem, device)))

    def measure(
        self, config: GemmConfig, budget_ms: float, method: str = "sustained"
    ) -> Measurement:
        """Check config's product, then time it for about budget_ms of device time.

        Raises WrongResultError, and whatever running the configuration raises.
        """
        check_choice("method", method, METHODS)
        with float32_precision(self._problem):
            if method == "burst":
                call = self._checked_calls(config)[0]
                samples = burst(call, self._backend, budget_ms)
                self._check(call)
            else:
                samples = sustained(self._loop(config), self._backend, budget_ms)
        return Measurement.from_samples(config, method, samples)

    def race(self, configs: Sequence[GemmConfig], budget_ms: float, turn: Turn = SHORT) -> Race:
        """Check every product, then time the configurations in turns, budget_ms for each."""
        with float32_precision(self._problem):
            loops = self.loops(configs)
            with ClockLog(_gpu_id(self._device)) as log:
                rounds = interleaved(loops, self._backend, budget_ms, turn)
        measurements = tuple(
            Measurement.from_samples(
                config,
                "sustained",
                Samples(
                    times,
                    item.host_us,
                    False,
                    len(times) * item.calls * counted_replays(item, turn),
                ),
                log.clocks,
            )
            for config, item, times in zip(configs, loops, rounds, strict=True)
        )
        return Race(measurements, tuple(rounds))

    def loops(self, configs: Sequence[GemmConfig]) -> list[Loop]:
        """Check every product; the calls of each configuration as one replayable launch."""
        return [self._loop(config) for config in configs]

    def _loop(self, config: GemmConfig) -> Loop:
        looped = loop(self._checked_calls(config), self._backend)
        self._check(looped.replay)  # the first launch may be right, and later or captured ones not
        return looped

    def _checked_calls(self, config: GemmConfig) -> list[Call]:
        calls = [self._call(config, *buffers) for buffers in self._buffers]
        self._check(calls[0])
        return calls

    def _check(self, launch: Call) -> None:
        """Raise WrongResultError unless launch makes the product in the first output."""
        out = self._buffers[0][-1]
        out.fill_(float("nan"))
        launch()
        self._backend.synchronize()
        self._reference.check(out)

    def _call(
        self, config: GemmConfig, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
    ) -> Call:
        if config.kernel == "torch":
            return functools.partial(_torch_product, a, b, out)
        return functools.partial(self._run, config, self._problem, a, b, out)


def _torch_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch_matmul(a, b, out=out)


def _gpu_id(device: torch.device | str) -> str:
    """What nvidia-smi calls the device: its UUID, as torch's index depends on the environment."""
    if torch.device(device).type != "cuda":
        return "none"
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
