"""Which tensors our kernels take, and the GEMM problem that two of them pose."""

from itertools import accumulate
from operator import attrgetter, mul
from typing import TypeAlias

import torch
from torch._C import (
    _get_fp32_precision_getter,
    _get_tracing_state,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from autoswizzle.problem import ALIGNMENT, GemmProblem, operand_layout

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

Output: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # extents, strides, dtype

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# torch's own, kept here since patching replaces them where torch has them
torch_matmul, torch_mm, torch_linear = torch.matmul, torch.mm, torch.nn.functional.linear
on_gpu = attrgetter("is_cuda")
DEVICE = "cuda"


def why_torch(a: torch.Tensor, b: torch.Tensor) -> str | None:
    """Why torch.matmul itself must take a and b, whatever their shapes; None: ours may.

    The reason is judged on every call, so it costs attribute reads alone (about 1 us on a CPU core
    of 2.5 GHz).
    """
    if type(a) not in PLAIN or type(b) not in PLAIN:
        return "an operand is no plain tensor"
    if not (on_gpu(a) and on_gpu(b)) or a.get_device() != b.get_device():
        return "the operands are not on one CUDA device"
    dtype = a.dtype
    if dtype is not b.dtype or dtype not in DTYPES:
        return "the dtypes are not both float16, bfloat16 or float32"
    if a.layout is not torch.strided or b.layout is not torch.strided or a.is_nested or b.is_nested:
        return "an operand is not dense"
    if a.is_neg() or b.is_neg() or a._is_zerotensor() or b._is_zerotensor():
        return "an operand is a lazily negated view or a zero without memory"
    if is_functorch_wrapped_tensor(a) or is_functorch_wrapped_tensor(b):
        return "an operand is wrapped by a transform"  # which may have ended
    if autocast_dtype() not in (None, dtype):
        return "autocast changes the dtype"
    return "a transform or mode is active" if transformed() else None


def autocast_dtype() -> torch.dtype | None:
    """What autocast casts the operands of a product on a GPU to, if it is on."""
    return torch.get_autocast_dtype(DEVICE) if torch.is_autocast_enabled(DEVICE) else None


def transformed() -> bool:
    """Whether something must see torch.matmul called: vmap, dual numbers, a mode, a tracer."""
    return (
        under_functorch()
        or _len_torch_dispatch_stack() > 0
        or _get_tracing_state() is not None
        or _under_mode()
    )


def overridden(*operands: object) -> bool:
    """Whether the __torch_function__ of an operand or a mode must see torch's own function called.

    What a graph being traced asks; an eager call asks why_torch. PLAIN's types are named, as the
    graph would be guarded by PLAIN's members, in Python.
    """
    for operand in operands:
        if type(operand) is not torch.Tensor and type(operand) is not torch.nn.Parameter:
            return True
    return _under_mode()


def _under_mode() -> bool:
    """Whether a mode is on the stack; torch.set_default_device's can't change a product."""
    return _len_torch_function_stack() > 0 and not all(
        map(_is_device_context, range(_len_torch_function_stack()))
    )


def under_functorch() -> bool:
    """Whether a transform of torch.func (vmap too) or forward-mode differentiation is active."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _is_device_context(level: int) -> bool:
    return type(torch._C._get_function_stack_at(level)) is DeviceContext


def as_matrices(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """View a as (m, k) and b as (k, n) when torch.matmul(a, b) is one non-empty 2-D product.

    a of shape (..., k), a vector too, counts when it folds to (m, k) without a copy.
    """
    if b.dim() != 2 or a.dim() < 1 or a.shape[-1] != b.shape[0]:
        return None
    if a.numel() == 0 or b.numel() == 0:
        return None
    if a.dim() != 2:
        if not a.is_contiguous():
            return None
        a = a.view(-1, a.shape[-1])
    return a, b


def output_of(a: torch.Tensor, n: int) -> Output:
    """What the contiguous product of a (..., k) and b (k, n) is."""
    extents = (*a.shape[:-1], n)
    strides = tuple(accumulate(extents[:0:-1], mul, initial=1))[::-1]
    return extents, strides, a.dtype


def is_row(bias: torch.Tensor | None, columns: int, like: torch.Tensor) -> bool:
    """Whether bias is None or a dense vector that adds to every row of a product like `like`."""
    return bias is None or (
        bias.layout is torch.strided
        and bias.dim() == 1
        and bias.shape[0] == columns
        and bias.dtype is like.dtype
        and bias.device == like.device
    )


def is_regular(operand: torch.Tensor) -> bool:
    """Whether a matrix is stored row-major or column-major without overlap."""
    rows, cols = operand.shape
    return operand_layout(rows, cols, operand.stride()) is not None


def is_row_major(operand: torch.Tensor) -> bool:
    """Whether a matrix is stored row-major, which an irregular one counts as."""
    rows, cols = operand.shape
    return operand_layout(rows, cols, operand.stride()) != "t"


def problem_of(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    traced_m: int | None = None,
) -> GemmProblem:
    """The problem of a (m, k) @ b (k, n) into out, or into a fresh contiguous tensor.

    An operand of irregular strides counts as stored along its smaller stride, unaligned.
    traced_m: the operands are fake ones of a tracer: m, and every base counts as aligned.
    """
    real = traced_m is None
    layout_a, aligned_a = _stored(a, a.data_ptr() if real else 0)
    layout_b, aligned_b = _stored(b, b.data_ptr() if real else 0)
    if out is None:
        out_aligned = b.shape[1] * a.itemsize % ALIGNMENT == 0
    else:
        layout, out_aligned = _stored(out, out.data_ptr())
        out_aligned = out_aligned and layout == "n"
    return GemmProblem(
        a.shape[0] if traced_m is None else traced_m,
        b.shape[1],
        b.shape[0],
        DTYPES[a.dtype],
        layout_a + layout_b,
        precision=fp32_precision() if a.dtype is torch.float32 else "ieee",
        aligned=aligned_a and aligned_b and out_aligned,
    )


def _stored(operand: torch.Tensor, base: int) -> tuple[str, bool]:
    """Layout of a matrix and whether its base and outer stride are 16-byte multiples."""
    (rows, cols), (row_stride, col_stride) = operand.shape, operand.stride()
    layout = operand_layout(rows, cols, (row_stride, col_stride))
    if layout is None:
        return ("n" if col_stride <= row_stride else "t"), False
    # the stride along an extent of 1 is never used: count the contiguous one, as tuning does
    if layout == "n":
        outer = row_stride if rows > 1 else cols
    else:
        outer = col_stride if cols > 1 else rows
    return layout, outer * operand.itemsize % ALIGNMENT == 0 and base % ALIGNMENT == 0


def fp32_precision() -> str:
    """The precision of an fp32 product by torch's settings: ieee or tf32.

    The getter of torch.backends.cuda.matmul.fp32_precision: it follows every API torch has for it,
    and does not raise when they were mixed, as get_float32_matmul_precision and allow_tf32 do.
    """
    return "tf32" if _get_fp32_precision_getter("cuda", "matmul") == "tf32" else "ieee"
