"""What operands like these were answered with before: the short way of an eager call.

why_torch and the memo of plans ask a tensor for a dozen facts, one call each. Torch has one call
for them in C++, the guard that torch.compile puts before a graph: two tensors pass it when their
types, dispatch keys, dtypes, devices, requires_grad, extents and strides are those of the two it
was made from. Dispatch keys tell the kind of device, layout, nesting, negation, wrappers, inference
mode, and what this thread has switched on: autocast, functional transforms, tracing. recall asks
for the rest, so its answer is what why_torch and plan_of would come to.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._dynamo import guards
from torch.autograd import forward_ad

from autoswizzle.dispatch import dispatcher, remember
from autoswizzle.operands import PLAIN, autocast_dtype, fp32_precision, output_of, transformed
from autoswizzle.problem import ALIGNMENT

_guard: Any = getattr(guards, "TensorGuards", None)  # without it, every call goes the long way

MAX_GUARDS = 8  # of one pair of shapes, newest first; each that fails costs 0.2 us
MATMUL, LINEAR = "matmul", "linear"  # whose operands they are


class Known:
    """Operands that a guard knows again, and their plan if aligned is true of their addresses.

    precision: of fp32 operands, that of the plan. tracked: one of them requires gradients.
    output: what the product is, if it has a kernel.
    """

    __slots__ = ("output", "passes", "plan", "precision", "tracked")

    def __init__(self, a: torch.Tensor, b: torch.Tensor, plan: Any) -> None:  # noqa: ANN401
        guard = _guard(a, b, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self.passes: Callable[[torch.Tensor, torch.Tensor], bool] = guard.check
        self.plan = plan
        self.precision = fp32_precision() if a.dtype is torch.float32 else None
        self.tracked = a.requires_grad or b.requires_grad
        self.output = output_of(a, 0 if plan.problem is None else plan.problem.n)


def recall(kind: str, a: torch.Tensor, b: torch.Tensor) -> Known | None:
    """What was learned of operands of this kind like a and b, which may be anything."""
    if type(a) not in PLAIN or type(b) not in PLAIN:
        return None
    if (
        _len_torch_function_stack() > 0
        or _len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    ) and transformed():
        return None
    try:
        key = kind, a.shape, b.shape
    except RuntimeError:  # a nested tensor has no shape
        return None
    found: Known
    for found in dispatcher().plans.get(key, ()):
        if found.passes(a, b) and (found.precision is None or found.precision == fp32_precision()):
            return found
    return None


def learn(plans: dict[Any, Any], kind: str, a: torch.Tensor, b: torch.Tensor, plan: object) -> None:
    """Let recall answer operands like a and b, which why_torch let pass, from this memo of plans.

    It is the memo that holds the plan: a dispatcher that forgets starts another.
    """
    if _guard is None or autocast_dtype() is not None or not aligned(a.data_ptr(), b.data_ptr()):
        return  # no guard sees the dtype of autocast, nor an address
    known = Known(a, b, plan)
    if known.passes(a, b):  # none lets one tensor pass twice
        key = kind, a.shape, b.shape
        remember(plans, key, (known, *plans.get(key, ())[: MAX_GUARDS - 1]))


def aligned(at_a: int, at_b: int) -> bool:
    """Whether both addresses are those of aligned operands."""
    return (at_a | at_b) % ALIGNMENT == 0
