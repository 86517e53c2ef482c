"""linear: F.linear's contract, its product through the dispatch of matmul."""

from collections.abc import Callable
from functools import partial

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import functional

from autoswizzle import graph
from autoswizzle.errors import check_choice
from autoswizzle.operands import PLAIN, is_row, overridden, torch_linear, why_torch
from autoswizzle.ops import planned
from autoswizzle.plans import plan_for, quick
from autoswizzle.recall import LINEAR, recall

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
) -> torch.Tensor:
    """activation(F.linear(x, weight, bias)): x (..., k), weight (n, k), bias (n,) to (..., n).

    Same shapes, dtypes, gradients and errors as F.linear; activation: relu, gelu (by erf),
    gelu_tanh, silu or None. The product is x @ weight.T as matmul decides it, the weight read as it
    is stored. No kernel fuses bias or activation yet: torch adds them afterwards, so a 16-bit
    result is rounded before and after the bias, and a biased product runs on a tuned kernel only
    where that saves more time than the added pass costs. Raises ArgumentError for another
    activation.
    """
    check_choice("activation", activation, ACTIVATIONS, optional=True)
    result = linear_or(torch_linear, x, weight, bias)
    return result if activation is None else ACTIVATIONS[activation](result)


def linear_or(
    theirs: Callable[..., torch.Tensor],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As linear, but what is torch's goes to this function of x, weight, bias."""
    if is_dynamo_compiling():
        operands = (x, weight) if bias is None else (x, weight, bias)
        return theirs(*operands) if overridden(*operands) else graph.linear(*operands)
    known = recall(LINEAR, x, weight)
    if known is None and (why_torch(x, weight) is not None or weight.dim() != 2):
        return theirs(x, weight) if bias is None else theirs(x, weight, bias)
    if bias is not None and not (type(bias) in PLAIN and is_row(bias, weight.shape[0], x)):
        return theirs(x, weight, bias)
    plan = plan_for(LINEAR, known, x, weight)
    if plan.config is None or not (bias is None or plan.pays_a_pass):
        return theirs(x, weight, bias)
    result = None if known is None else quick(known, x, weight)
    if result is None:
        result = planned(plan, x, weight.t())
    return result if bias is None else result.add_(bias)
