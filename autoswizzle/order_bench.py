"""One configuration timed under every tile order, beside what the L2 model predicts of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autoswizzle import kernels
from autoswizzle.calibration import calibrated
from autoswizzle.config import GROUPED_SWIZZLES, SWIZZLES, GemmConfig
from autoswizzle.hardware import Gpu, detect
from autoswizzle.laboratory import compile_ahead
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import Prediction, predict
from autoswizzle.space import why_illegal

if TYPE_CHECKING:
    from autoswizzle.search.measure import Measurement

GROUP_SIZES = (1, 2, 4, 8, 16, 32, 64)  # those of the source article's table


@dataclass(frozen=True, slots=True)
class OrderRow:
    """One tile order: what was predicted and what was measured."""

    prediction: Prediction
    measurement: "Measurement"

    @property
    def tflops(self) -> float:
        """Achieved TFLOP/s."""
        return self.measurement.tflops(self.prediction.problem)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping."""
        return {
            "prediction": self.prediction.to_dict(),
            "measurement": self.measurement.to_dict(),
            "tflops": self.tflops,
        }


def bench_orders(
    problem: GemmProblem,
    base: GemmConfig,
    *,
    timing: str = "burst",
    warmup_ms: float = 25.0,
    rep_ms: float = 100.0,
    group_sizes: Sequence[int] = GROUP_SIZES,
    swizzles: Sequence[str] = SWIZZLES,
    device: int = 0,
    gpu: Gpu | None = None,
) -> list[OrderRow]:
    """Time base under every tile order and, where it has one, every group size, on one GPU.

    Every order's product is checked before the first is timed. timing: burst (the L2 flushed
    before each call) or sustained. gpu: the device's facts, to overrule what it reports. Raises
    ConfigError when base can't run problem, WrongResultError when a product is wrong.
    """
    import torch

    from autoswizzle.search.measure import Measurer

    gpu = gpu or calibrated(detect(device))
    predictions = predict_orders(problem, base, gpu, group_sizes, swizzles)
    compile_ahead([prediction.config for prediction in predictions], problem, gpu)
    with torch.cuda.device(device):
        measurer = Measurer(problem, gpu, kernels.run, device=f"cuda:{device}")
        for prediction in predictions:
            measurer.measure(prediction.config, warmup_ms, timing)
        return [
            OrderRow(prediction, measurer.measure(prediction.config, rep_ms, timing))
            for prediction in predictions
        ]


def predict_orders(
    problem: GemmProblem,
    base: GemmConfig,
    gpu: Gpu,
    group_sizes: Sequence[int] = GROUP_SIZES,
    swizzles: Sequence[str] = SWIZZLES,
) -> list[Prediction]:
    """The prediction of base under every order and group size that its kernel takes (gemv and
    skinny: row alone), residency from the compiler. Raises ConfigError when it takes none.
    """
    resources = kernels.compile_for(base, problem, gpu)
    default = (GemmConfig().group_size,)
    configs = [
        replace(base, swizzle=swizzle, group_size=size)
        for swizzle in swizzles
        for size in (group_sizes if swizzle in GROUPED_SWIZZLES else default)
    ]
    legal = [config for config in configs if why_illegal(config, problem, gpu) is None]
    return [predict(problem, config, gpu, resources) for config in legal or configs]
