"""How code that Inductor generates runs a tuned product: by a call, as it runs torch.mm.

As an operator, a product costs such code a dispatch, checks of the result and memory outside its
plan: 3.5 us of host time more than torch.mm, the call 0.4 (8 x 8 on a CPU, torch 2.13, 2026-11-30).
What this takes of Inductor is private to torch: in a version not known here, products stay
operators.
"""

import re
import sys
from importlib import import_module
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _disable_current_modes

from autoswizzle.operands import torch_mm
from autoswizzle.plans import launch, plan_for, started
from autoswizzle.problem import ALIGNMENT
from autoswizzle.recall import MATMUL, aligned, recall

INDUCTOR = "torch._inductor.lowering"
KNOWN = ((2, 11), (2, 13))  # versions of torch, from and to, in which the parts below are alike


def lower(operator: Any) -> None:  # noqa: ANN401
    """Have Inductor, if it has been loaded, call mm_into for an operator (m, k) x (k, n)."""
    known = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if INDUCTOR not in sys.modules or known is None:
        return
    if KNOWN[0] <= (int(known[1]), int(known[2])) <= KNOWN[1]:
        lowering: Any = import_module(INDUCTOR)  # waits for a thread that still imports it
        present = lowering.lowerings.get(operator)  # one that Inductor made up, perhaps
        if getattr(present, "__module__", None) != __name__:
            lowering.register_lowering(operator, type_promotion_kind=None)(_lowering(operator))


def _lowering(operator: Any) -> Any:  # noqa: ANN401
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    class Product(ir.ExternKernelOut):
        def codegen(self, wrapper: Any) -> None:  # noqa: ANN401
            wrapper.add_import_once(f"import {__name__}")
            super().codegen(wrapper)

    def as_traced(operand: Any, node: Any) -> Any:  # noqa: ANN401
        """In memory, with the strides that the plan was made for."""
        placed = ir.ExternKernel.realize_input(operand)
        return ir.ExternKernel.require_exact_strides(placed, node.meta["val"].stride())

    def lowered(a: Any, b: Any) -> Any:  # noqa: ANN401
        a, b = map(as_traced, (a, b), V.graph.current_node.args)
        if V.graph.cpp_wrapper or V.graph.fx_wrapper:  # they call no Python but operators
            return fallback_handler(operator)(a, b)  # type: ignore[no-untyped-call]
        extents = [a.get_size()[0], b.get_size()[1]]
        layout = ir.FixedLayout(a.get_device(), a.get_dtype(), extents)
        name = f"{__name__}.{mm_into.__name__}"
        return ir.TensorBox.create(Product(layout, [a, b], python_kernel_name=name))

    return lowered


def mm_into(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write a (m, k) @ b (k, n), as decided for these operands, into out (m, n), contiguous.

    Generated code that torch keeps on disk names it: its name and parameters stay.
    """
    known = recall(MATMUL, a, b)
    if known is not None and out.data_ptr() % ALIGNMENT == 0:
        at_a, at_b = a.data_ptr(), b.data_ptr()
        if aligned(at_a, at_b) and started(known.plan, known.output, at_a, at_b, out) is not None:
            return
    if _len_torch_dispatch_stack() > 0:  # modes see operators, not what their kernels do
        with _disable_current_modes():
            mm_into(a, b, out=out)
        return
    plan = plan_for(MATMUL, known, a, b)
    if plan.config is None or not launch(plan, a, b, out):
        torch_mm(a, b, out=out)
