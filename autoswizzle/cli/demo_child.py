"""The demo's second process: `python -m autoswizzle.cli.demo_child interpret|serve JSON`.

It reads one JSON object and prints one. interpret: run a configuration in Triton's interpreter (the
caller sets TRITON_INTERPRET=1). serve: multiply tuned problems as a user's program would.
"""

import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import detect
from autoswizzle.problem import TORCH_NAMES, GemmProblem

RACE_MS = 200.0  # of GPU time for each side of a comparison


def interpret(request: dict[str, Any]) -> dict[str, Any]:
    """Run request's config on its problem on the CPU and compare with torch.

    The inputs are integers in -2..2, exact in every dtype, so that equal means equal; the output
    starts as NaN, so that a tile left out shows.
    """
    import torch

    from autoswizzle.kernels import run

    problem = GemmProblem.parse(request["problem"])
    config = GemmConfig.from_dict(request["config"])
    torch.manual_seed(0)
    dtype = getattr(torch, TORCH_NAMES[problem.dtype])
    a = torch.randint(-2, 3, (problem.m, problem.k)).to(dtype)
    b = torch.randint(-2, 3, (problem.k, problem.n)).to(dtype)
    out = torch.full((problem.m, problem.n), torch.nan, dtype=dtype)
    run(config, problem, a, b, out)
    expected = (a.double() @ b.double()).to(dtype)
    return {"equal": torch.equal(out, expected)}


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Multiply each of request's problems on the GPU: where it came from, and torch's time."""
    return {"served": [_serve(GemmProblem.parse(text)) for text in request["problems"]]}


def _serve(problem: GemmProblem) -> dict[str, Any]:
    import torch

    import autoswizzle

    dtype = getattr(torch, TORCH_NAMES[problem.dtype])
    a = _operand(problem.m, problem.k, problem.layout[0], dtype)
    b = _operand(problem.k, problem.n, problem.layout[1], dtype)
    decision = autoswizzle.explain(a, b)
    own, reference = autoswizzle.matmul(a, b), torch.matmul(a, b)

    def multiply() -> None:
        autoswizzle.matmul(a, b, out=own)

    def multiply_with_torch() -> None:
        torch.matmul(a, b, out=reference)

    return {
        "problem": str(problem),
        "source": decision.source,
        "config": str(decision.config),
        "right": torch.allclose(own, reference, rtol=2e-2, atol=2e-2),
        "ratio": _ratio(multiply, multiply_with_torch),
    }


def _ratio(own: Callable[[], None], reference: Callable[[], None]) -> float:
    """The time of reference over that of own, both called in turns."""
    from autoswizzle.search.timing import CudaBackend, interleaved, loop

    backend = CudaBackend(detect(0).l2_bytes)
    loops = [loop([call], backend) for call in (own, reference)]
    own_us, reference_us = map(median, interleaved(loops, backend, RACE_MS))
    return reference_us / own_us


def _operand(rows: int, cols: int, stored: str, dtype: Any) -> Any:  # noqa: ANN401  # torch's own
    import torch

    if stored == "n":
        return torch.randn(rows, cols, dtype=dtype, device="cuda")
    return torch.randn(cols, rows, dtype=dtype, device="cuda").t()


if __name__ == "__main__":
    job = {"interpret": interpret, "serve": serve}[sys.argv[1]]
    print(json.dumps(job(json.loads(sys.argv[2]))))
