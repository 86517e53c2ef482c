"""Gradients of a 2-D product: products again, so they are tuned as well, and differentiable."""

from collections.abc import Callable
from typing import Any

import torch

from autoswizzle.operands import Output
from autoswizzle.plans import Plan, product

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Product(torch.autograd.Function):
    """plans.product of a (m, k) and b (k, n); multiply makes the gradients, and theirs."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        multiply: Multiply,
        plan: Plan,
        output: Output,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """The product, and what its gradients need."""
        ctx.multiply, ctx.row_major = multiply, plan.row_major
        save_operands(ctx, a, b, ctx.needs_input_grad[3:])
        return product(plan, a, b, output)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """The gradients of a and b; None for the multiplier, the plan and the output's facts."""
        grad = grads[0]
        if grad.dim() != 2:
            grad = grad.reshape(-1, grad.shape[-1])
        return (None, None, None, *gradients(ctx.multiply, ctx, grad))


# Product.apply without its lines in Python, which are for functional transforms: no plan is made
# under one. They cost about 1 us.
_apply = super(torch.autograd.Function, Product).apply


def differentiable(
    multiply: Multiply, plan: Plan, output: Output, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """plans.product of a (m, k) and b (k, n); multiply makes the gradients, and theirs."""
    result: torch.Tensor = _apply(multiply, plan, output, a, b)  # type: ignore[no-untyped-call]
    return result


def save_operands(
    ctx: Any,  # noqa: ANN401
    a: torch.Tensor,
    b: torch.Tensor,
    needs: tuple[bool, ...],
) -> None:
    """Keep each operand only if the other one's gradient is needed."""
    ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None)


def gradients(
    multiply: Multiply,
    ctx: Any,  # noqa: ANN401
    grad: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients that are needed, each stored the way its operand is, so never copied."""
    a, b = ctx.saved_tensors
    grad_a = grad_b = None
    if b is not None:
        grad_a = multiply(grad, b.mT) if ctx.row_major[0] else multiply(b, grad.mT).mT
    if a is not None:
        grad_b = multiply(a.mT, grad) if ctx.row_major[1] else multiply(grad.mT, a).mT
    return grad_a, grad_b
