"""The operators that stand for autoswizzle.matmul and linear in a graph of torch.compile or export.

Dynamo puts autoswizzle::matmul or autoswizzle::linear into its graph without looking inside.
Tracing below it runs _decided with fake tensors: a product that torch shall run becomes
aten.matmul, as if autoswizzle were not there, so Inductor plans and fuses as ever and no call pays
for it. Only a product with a tuned kernel becomes the opaque autoswizzle::mm, which decides on the
real tensors it is given; Inductor's code has a call in its place (inductor.py). The operators carry
a fingerprint of what is tuned: torch keeps compiled graphs on disk, and one from before tuning must
not be taken for one from after it.
"""

import math
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped

from autoswizzle import dispatch, operands
from autoswizzle.autograd import gradients, save_operands
from autoswizzle.dispatch import decide, dispatcher
from autoswizzle.errors import UnavailableError
from autoswizzle.inductor import lower
from autoswizzle.operands import (
    DTYPES,
    is_regular,
    is_row,
    is_row_major,
    output_of,
    problem_of,
    torch_linear,
    torch_matmul,
    torch_mm,
)
from autoswizzle.plans import plan_for, product, quick
from autoswizzle.recall import MATMUL, recall


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """torch.matmul(a, b) as one operator of the graph."""
    result: torch.Tensor = library.matmul(a, b, _tuned())
    return result


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear(x, weight, bias) as one operator of the graph."""
    result: torch.Tensor = library.linear(x, weight, bias, _tuned())
    return result


def _tuned() -> str:
    return dispatcher().fingerprint()


# Dynamo calls it when it traces and keeps the text: torch.compiler.assume_constant_result(_tuned),
# which would load torch._dynamo here.
_tuned._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _decided(a: torch.Tensor, b: torch.Tensor, tuned: str = "") -> torch.Tensor:
    if not _is_tuned(a, b):
        return torch_matmul(a, b)
    lower(library.mm.default)
    product: torch.Tensor = _Tuned.apply(a.flatten(0, -2), b)  # type: ignore[no-untyped-call]
    if a.dim() == 2:
        return product
    # torch.matmul's own way to unfold: its result is no view
    unfolded: torch.Tensor = torch.ops.aten._unsafe_view(product, (*a.shape[:-1], b.shape[1]))
    return unfolded


def _decided_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tuned: str = ""
) -> torch.Tensor:
    b = weight.t() if weight.dim() == 2 else weight
    if not (is_row(bias, b.shape[-1], x) and _is_tuned(x, b)):
        return torch_linear(x, weight, bias)
    product = _decided(x, b)
    return product if bias is None else product + bias  # fused with what follows it


def _is_tuned(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether operands of a tracer pose a problem with a tuned kernel (for some m if symbolic)."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # slow: loads sympy

    if b.dim() != 2 or a.dim() < 2 or a.dtype is not b.dtype or a.dtype not in DTYPES:
        return False
    if not (operands.on_gpu(a) and operands.on_gpu(b)) or a.device != b.device:
        return False
    if operands.under_functorch() or is_wrapped(a) or is_wrapped(b):
        return False
    if operands.autocast_dtype() not in (None, a.dtype):
        return False
    if not all(type(extent) is int and extent > 0 for extent in b.shape):
        return False
    if any(map(free_unbacked_symbols, a.shape)):  # nothing may be asked of such an extent
        return False
    if a.shape[-1] != b.shape[0] or not (a.dim() == 2 or a.is_contiguous()):
        return False
    try:
        gpu = dispatch.gpu_of(a.get_device())
    except UnavailableError:
        return False
    m = math.prod(a.shape[:-1])
    if type(m) is not int:
        like = _of_16_rows(a, b.shape[0])
        return is_regular(b) and dispatcher().is_tuned(problem_of(like, b, traced_m=16), gpu)
    flat = a.flatten(0, -2)
    if m == 0 or not (is_regular(flat) and is_regular(b)):
        return False
    return not decide(problem_of(flat, b, traced_m=m), gpu).uses_torch


def _of_16_rows(a: torch.Tensor, k: int) -> torch.Tensor:
    """Stands for a of symbolic m: stored alike, aligned if k is. Asks a nothing about its m, as
    each answer would bind the graph to it.
    """
    like = a.new_empty((16, k), device="meta")
    inner = a.stride(-1)
    return like if type(inner) is int and inner == 1 else like.new_empty((k, 16)).mT


class _Tuned(torch.autograd.Function):
    """The product of a graph and its gradients; they are traced as products, the operator is not.

    Registered with the operator instead, they would cost each call of it a kernel in Python.
    """

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.row_major = is_row_major(a), is_row_major(b)
        save_operands(ctx, a, b, ctx.needs_input_grad)
        result: torch.Tensor = library.mm(a, b)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        return gradients(multiply, ctx, grads[0])


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    known = recall(MATMUL, a, b)
    result = None if known is None else quick(known, a, b)
    if result is not None:
        return result
    plan = plan_for(MATMUL, known, a, b)
    if plan.config is None:
        return torch_mm(a, b)
    return product(plan, a, b, output_of(a, b.shape[1]))


def _mm_fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


# Registered when the module is loaded: Dynamo looks operators up by name.
_library = torch.library.Library("autoswizzle", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    'matmul(Tensor a, Tensor b, str tuned="") -> Tensor',
    'linear(Tensor x, Tensor weight, Tensor? bias, str tuned="") -> Tensor',
    "mm(Tensor a, Tensor b) -> Tensor",
):
    _library.define(_schema, tags=torch.Tag.pt2_compliant_tag)  # type: ignore[no-untyped-call]
for _key in ("CompositeImplicitAutograd", "FuncTorchBatchedDecomposition"):  # the second is vmap's
    _library.impl("matmul", _decided, _key)  # type: ignore[no-untyped-call]
    _library.impl("linear", _decided_linear, _key)  # type: ignore[no-untyped-call]
_library.impl("mm", _mm, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("autoswizzle::mm", _mm_fake, lib=_library)

library = torch.ops.autoswizzle
