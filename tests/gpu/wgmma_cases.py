"""Runs wgmma cases in a process of its own, which a kernel that hangs takes with it.

Reads a JSON list of {"problem", "config", "check"} on stdin. Writes a JSON line as each case starts
and ends: {"case": index} and {"case": index, "error": text or null}.
"""

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.errors import AutoswizzleError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import compile_for, run
from autoswizzle.problem import ALIGNMENT, TORCH_NAMES, GemmProblem

DEVICE = torch.device("cuda", 0)
GUARD = 77.0  # around every output
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}


def strided(
    rows: int, cols: int, transposed: bool, dtype: torch.dtype, fill: float
) -> torch.Tensor:
    """A rows x cols view into a larger block of `fill`: aligned, its row pitch above its width."""
    height, width = (cols, rows) if transposed else (rows, cols)
    unit = ALIGNMENT // dtype.itemsize
    pitch = (-(-width // unit) + 1) * unit
    block = torch.full((height + 2, pitch), fill, dtype=dtype, device=DEVICE)
    view = block[1:-1, :width]
    return view.t() if transposed else view


def operands(problem: GemmProblem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = getattr(torch, TORCH_NAMES[problem.dtype])
    nan = float("nan")  # beside an operand: whatever reads past its extents shows
    a = strided(problem.m, problem.k, problem.layout[0] == "t", dtype, nan)
    b = strided(problem.k, problem.n, problem.layout[1] == "t", dtype, nan)
    return a, b, strided(problem.m, problem.n, False, dtype, GUARD)


def check_guard(out: torch.Tensor) -> None:
    inside = out.clone()
    out.fill_(GUARD)
    block = out.as_strided((out.shape[0] + 2, out.stride(0)), (out.stride(0), 1), 0)
    if not bool((block == GUARD).all()):
        raise AssertionError("written outside the output")
    out.copy_(inside)


def check_exact(config: GemmConfig, problem: GemmProblem) -> None:
    """Integers in -2..2: every sum is exact in fp32, so the output is the rounded product."""
    a, b, out = operands(problem)
    a.copy_(torch.randint(-2, 3, a.shape, device=DEVICE))
    b.copy_(torch.randint(-2, 3, b.shape, device=DEVICE))
    expected = (a.double() @ b.double()).to(out.dtype)
    for launch in range(3):
        out.fill_(float("nan"))
        run(config, problem, a, b, out)
        if not torch.equal(out, expected):
            wrong = (out != expected).nonzero()
            raise AssertionError(
                f"launch {launch}: {len(wrong)} wrong elements, first at {wrong[0].tolist()}"
            )
        check_guard(out)


def check_bound(config: GemmConfig, problem: GemmProblem) -> None:
    """Normal data against float64, within one rounding and the accumulation of k terms; the same
    bits each time.
    """
    a, b, out = operands(problem)
    a.normal_()
    b.normal_()
    out.fill_(float("nan"))
    run(config, problem, a, b, out)
    for launch in range(1, 6):
        again = torch.full_like(out, float("nan"))
        run(config, problem, a, b, again)
        if not torch.equal(again, out):
            raise AssertionError(f"launch {launch}: not the bits of the first")
    expected = a.double() @ b.double()
    magnitude = a.double().abs() @ b.double().abs()
    relative = 4 * problem.k * 2.0**-24 + (2.0**-9 if problem.precision == "tf32" else 0)
    bound = UNIT_ROUNDOFF[problem.dtype] * expected.abs() + relative * magnitude
    error = (out.double() - expected).abs()
    if not bool((error <= bound).all()):  # NaN fails too
        raise AssertionError(f"error up to {float((error / bound).max()):.3g} of the bound")


def check_overlap(config: GemmConfig, problem: GemmProblem) -> None:
    """Launches on two streams, and replays of one captured launch, share nothing."""
    a, b, _ = operands(problem)
    a.copy_(torch.randint(-2, 3, a.shape, device=DEVICE))
    b.copy_(torch.randint(-2, 3, b.shape, device=DEVICE))
    expected = (a.double() @ b.double()).to(a.dtype)
    outs = [strided(problem.m, problem.n, False, a.dtype, GUARD) for _ in range(8)]
    for out in outs:
        out.fill_(float("nan"))
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for index, out in enumerate(outs):
        with torch.cuda.stream(streams[index % 2]):
            run(config, problem, a, b, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    captured = strided(problem.m, problem.n, False, a.dtype, GUARD)
    with torch.cuda.graph(graph):
        run(config, problem, a, b, captured)
    for _ in range(3):
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        outs.append(captured.clone())
    if not all(torch.equal(out, expected) for out in outs):
        raise AssertionError("a launch that overlapped another computed something else")


CHECKS = {"exact": (check_exact,), "bound": (check_exact, check_bound), "overlap": (check_overlap,)}


def compile_one(case: tuple[GemmConfig, GemmProblem, str]) -> None:
    """Compiles into triton's cache on disk, in a process of a pool: tracing holds Python's lock."""
    config, problem, _ = case
    try:
        compile_for(config, problem, find_gpu("H200"))
    except AutoswizzleError:
        return  # its own run says so


def main() -> None:
    cases = [
        (
            GemmConfig.from_dict(case["config"]),
            GemmProblem.from_dict(case["problem"]),
            case["check"],
        )
        for case in json.load(sys.stdin)
    ]

    with ProcessPoolExecutor(14, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, cases))
    torch.manual_seed(0)
    for index, (config, problem, check) in enumerate(cases):
        print(json.dumps({"case": index}), flush=True)
        error = None
        try:
            for function in CHECKS[check]:
                function(config, problem)
        except (AutoswizzleError, AssertionError, RuntimeError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps({"case": index, "error": error}), flush=True)


if __name__ == "__main__":
    main()
