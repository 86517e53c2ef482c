"""Operands that resemble real ones, and the check that a kernel computed their product."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from autoswizzle.errors import WrongResultError
from autoswizzle.problem import ALIGNMENT, ITEMSIZE, TORCH_NAMES, GemmProblem

_BLOCK = 4096  # rows and columns of a block whose float64 product is held at once
_ROUNDING = {"fp8e4m3": 2**-4, "fp8e5m2": 2**-3, "fp16": 2**-11, "bf16": 2**-8, "fp32": 2**-24}
# Of |a| @ |b|: tf32 keeps 10 bits of a product's factors; the fp8 units accumulate in about 14.
_PRODUCT_ROUNDING = {"tf32": 2**-9, "fp8": 2**-9}


def make_inputs(
    problem: GemmProblem, device: torch.device | str = "cuda", seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random normal a (m, k) and b (k, n), with a leading batch if it is above 1.

    In the problem's layout (t = a transposed view) and alignment class: an aligned problem of odd
    extents has padded rows, an unaligned one of round extents starts one element late. The same
    seed gives equal values; torch's global generators are not used.
    """
    generator = torch.Generator(device).manual_seed(seed)
    a_transposed, b_transposed = (letter == "t" for letter in problem.layout)
    a = _strided(problem, problem.m, problem.k, a_transposed, problem.dtype, device)
    b = _strided(problem, problem.k, problem.n, b_transposed, problem.dtype, device)
    for operand in (a, b):
        if problem.dtype.startswith("fp8"):
            values = torch.empty(operand.shape, device=device).normal_(generator=generator)
            operand.copy_(values)
        else:
            operand.normal_(generator=generator)
    return a, b


def make_output(problem: GemmProblem, device: torch.device | str = "cuda") -> torch.Tensor:
    """An output (m, n), with a leading batch if it is above 1, filled with NaN."""
    out = _strided(problem, problem.m, problem.n, False, problem.out_dtype, device)
    return out.fill_(float("nan"))


def _strided(
    problem: GemmProblem,
    rows: int,
    cols: int,
    transposed: bool,
    dtype: str,
    device: torch.device | str,
) -> torch.Tensor:
    outer, inner = (cols, rows) if transposed else (rows, cols)
    unit = ALIGNMENT // ITEMSIZE[dtype]
    stride = -(-inner // unit) * unit if problem.aligned else inner
    late = int(not problem.aligned and bool(replace(problem, aligned=None).aligned))
    storage = torch.empty(
        problem.batch * outer * stride + late,
        dtype=getattr(torch, TORCH_NAMES[dtype]),
        device=device,
    )
    view = storage[late:].view(problem.batch, outer, stride)[:, :, :inner]
    view = view.mT if transposed else view
    return view if problem.batch > 1 else view[0]


class Reference:
    """The interval every element of a @ b must lie in, from a float64 product.

    |out - exact| <= u |exact| + (4 K 2^-24 + p) (|a| @ |b|), with u the output's rounding and p
    that of the tensor core's factors (tf32, fp8). Two float32 tensors of the output's shape.
    """

    def __init__(self, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor) -> None:
        shape = (*a.shape[:-1], b.shape[-1])
        self._low = torch.empty(shape, dtype=torch.float32, device=a.device)
        self._high = torch.empty_like(self._low)
        # Rounding exact +- slack to float32 moves it by 2^-24 of itself at most.
        relative = _ROUNDING[problem.out_dtype] + 2**-24
        absolute = 4 * problem.k * 2**-24 + _PRODUCT_ROUNDING.get(problem.rate, 0.0)
        bounds = (self._low, self._high)
        if problem.batch == 1:
            a, b, bounds = a[None], b[None], (self._low[None], self._high[None])
        for left_all, right_all, low, high in zip(a, b, *bounds, strict=True):
            for rows in _blocks(problem.m):
                left = left_all[rows].float().double()
                for cols in _blocks(problem.n):
                    right = right_all[:, cols].float().double()
                    exact = left @ right
                    slack = relative * exact.abs() + absolute * (left.abs() @ right.abs())
                    low[rows, cols] = exact - slack
                    high[rows, cols] = exact + slack

    def check(self, out: torch.Tensor) -> None:
        """Raise WrongResultError unless every element of out is inside; NaN never is."""
        values = out.float()
        right = (values >= self._low) & (values <= self._high)
        if bool(right.all()):
            return
        wrong = (~right).nonzero()
        first = tuple(wrong[0].tolist())
        low, high, got = (float(tensor[first]) for tensor in (self._low, self._high, values))
        raise WrongResultError(
            f"{len(wrong)} of {right.numel()} elements are wrong: "
            f"at {first} the product must be in {low:g}..{high:g}, got {got:g}"
        )


def _blocks(extent: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, extent, _BLOCK))


def check(problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Raise WrongResultError unless out is a @ b within Reference's bounds."""
    Reference(problem, a, b).check(out)


@contextmanager
def float32_precision(problem: GemmProblem) -> Iterator[None]:
    """Have torch multiply float32 in the problem's precision; restores the process's setting."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = problem.precision
    try:
        yield
    finally:
        matmul.fp32_precision = before
