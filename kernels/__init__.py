"""GEMM kernels: run one, compile one for a GPU that is not here, hash its source.

run and bind (config, problem, a, b, out), compile_for(config, problem, gpu), source_hash(kernel)
and current_source(kernel) are loaded at first use, so that importing this package imports neither
torch nor triton.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoswizzle.kernels.bound import bind
    from autoswizzle.kernels.launch import run
    from autoswizzle.kernels.offline import compile_for
    from autoswizzle.kernels.source import current_source, source_hash

__all__ = ["bind", "compile_for", "current_source", "run", "source_hash"]

_HOMES = {
    "bind": "bound",
    "compile_for": "offline",
    "current_source": "source",
    "run": "launch",
    "source_hash": "source",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # what a module attribute is
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"autoswizzle.kernels.{_HOMES[name]}"), name)
