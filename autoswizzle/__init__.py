"""Find, keep and reuse the fastest GEMM configuration for each problem on each GPU.

Names are loaded at first use: importing this package imports neither torch nor triton nor optuna,
and touches no GPU.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoswizzle.config import GemmConfig
    from autoswizzle.dispatch import Decision, explain, export_cache, load_cache
    from autoswizzle.errors import AutoswizzleError
    from autoswizzle.forecast import rank, simulate
    from autoswizzle.hardware import Gpu
    from autoswizzle.layers import linear
    from autoswizzle.ops import matmul, prepare
    from autoswizzle.patching import Patch, patch
    from autoswizzle.problem import GemmProblem
    from autoswizzle.recording import record_shapes
    from autoswizzle.results import TuneReport
    from autoswizzle.simulator.order import tile_order
    from autoswizzle.simulator.ranking import Prediction
    from autoswizzle.tuning import tune

__all__ = [
    "AutoswizzleError",
    "Decision",
    "GemmConfig",
    "GemmProblem",
    "Gpu",
    "Patch",
    "Prediction",
    "TuneReport",
    "explain",
    "export_cache",
    "linear",
    "load_cache",
    "matmul",
    "patch",
    "prepare",
    "rank",
    "record_shapes",
    "simulate",
    "smem",
    "tile_order",
    "tune",
]

_HOMES = {
    "AutoswizzleError": "errors",
    "Decision": "dispatch",
    "GemmConfig": "config",
    "GemmProblem": "problem",
    "Gpu": "hardware",
    "Patch": "patching",
    "Prediction": "simulator.ranking",
    "TuneReport": "results",
    "explain": "dispatch",
    "export_cache": "dispatch",
    "linear": "layers",
    "load_cache": "dispatch",
    "matmul": "ops",
    "patch": "patching",
    "prepare": "ops",
    "rank": "forecast",
    "record_shapes": "recording",
    "simulate": "forecast",
    "smem": "smem",
    "tile_order": "simulator.order",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # what a module attribute is
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"autoswizzle.{_HOMES[name]}")
    value = module if name == "smem" else getattr(module, name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return __all__
