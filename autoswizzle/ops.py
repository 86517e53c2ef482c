"""matmul: torch.matmul's contract, on a tuned kernel where one is known to be faster.

Eager calls go a short way: why_torch judges the operands, a memo maps their facts to a plan, and
the plan's kernel is launched. Whatever is no case for our kernels is handed to torch.matmul as it
came, so results, errors and warnings are torch's own.
"""

from collections.abc import Callable, Iterable

import torch
from torch import is_grad_enabled
from torch.compiler import is_dynamo_compiling

from autoswizzle import dispatch, operands
from autoswizzle.autograd import differentiable
from autoswizzle.config import GemmConfig, check_type
from autoswizzle.dispatch import Decision, decide
from autoswizzle.errors import UnavailableError
from autoswizzle.graph import multiply
from autoswizzle.hardware import check_device
from autoswizzle.operands import Output, output_of, overridden, torch_matmul, why_torch
from autoswizzle.plans import WITH_TORCH, Plan, launch, plan_for, plan_of, product, quick, settled
from autoswizzle.problem import ALIGNMENT, TORCH_NAMES, GemmProblem, as_problems
from autoswizzle.recall import MATMUL, recall


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    config: GemmConfig | None = None,
) -> torch.Tensor:
    """torch.matmul(a, b, out=out): same shapes, dtypes, gradients, errors and warnings.

    Dense products of a (..., k), which folds to (m, k), and b (k, n) in float16, bfloat16 or
    float32 on a CUDA device run on the kernel that tuning found fastest, all else on torch.matmul.
    config: run this configuration where the operands are such a case; raises ConfigError when it
    is illegal there, CandidateError when it fails. A graph of torch.compile decides by itself.
    """
    return product_or(torch_matmul, a, b, out, config)


def product_or(
    theirs: Callable[..., torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    config: GemmConfig | None = None,
) -> torch.Tensor:
    """As matmul, but what is torch's goes to this function of a, b, out=."""
    if config is not None:
        check_type(config)
    if is_dynamo_compiling():
        if out is None:
            return theirs(a, b) if overridden(a, b) else multiply(a, b)
        return theirs(a, b, out=out)
    if out is None and config is None:
        known = recall(MATMUL, a, b)
        result = None if known is None else quick(known, a, b)
        if result is not None:
            return result
        plan = plan_for(MATMUL, known, a, b)
    elif why_torch(a, b) is not None:  # no out=None, which a __torch_function__ would be given
        return theirs(a, b) if out is None else theirs(a, b, out=out)
    elif out is not None:
        return _product_into(theirs, a, b, out, config)
    else:
        plan = plan_of(a, b, None, config)
    return theirs(a, b) if plan.config is None else planned(plan, a, b)


def prepare(problems: Iterable[GemmProblem | str], device: int | None = None) -> list[Decision]:
    """Decide problems and load their kernels now, before a CUDA-graph capture or serving.

    Runs each product once on scratch operands of its layout (fp32 with torch's present precision),
    on device, the current one by default; an untuned problem gets what AUTOSWIZZLE_ON_MISS says.
    Returns what will run each. Raises ProblemError for a bad text, HardwareError for a bad device,
    UnavailableError without a GPU, CacheError for an untuned problem under the policy error.
    """
    wanted = as_problems(problems)
    index = _current_device() if device is None else device
    check_device(index)
    decisions = []
    for problem in wanted:
        gpu = dispatch.gpu_of(index)
        matrices = problem.batch == 1  # for others we have no kernels
        decisions.append(settled(problem, gpu, index) if matrices else decide(problem, gpu))
        if matrices and not decisions[-1].uses_torch:
            with torch.no_grad(), torch.autocast(operands.DEVICE, enabled=False):
                matmul(*scratch_operands(problem, torch.device("cuda", index)))
    return decisions


def _current_device() -> int:
    try:
        return torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:  # a build without CUDA, no driver
        raise UnavailableError(f"no CUDA device: {error}") from error


def scratch_operands(
    problem: GemmProblem, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised a (m, k) and b (k, n) of the problem's dtype, layout and alignment."""
    dtype = getattr(torch, TORCH_NAMES[problem.dtype])
    contiguous = GemmProblem(problem.m, problem.n, problem.k, problem.dtype, problem.layout)
    skipped = 1 if contiguous.aligned and not problem.aligned else 0  # misaligns the base
    unit = ALIGNMENT // problem.itemsize if problem.aligned else 1  # to which rows are padded

    def operand(rows: int, cols: int, layout: str) -> torch.Tensor:
        outer, inner = (rows, cols) if layout == "n" else (cols, rows)
        pitch = -(-inner // unit) * unit
        flat = torch.empty(outer * pitch + skipped, dtype=dtype, device=device)[skipped:]
        stored = flat.view(outer, pitch)[:, :inner]
        return stored if layout == "n" else stored.mT

    m, n, k, layout = problem.m, problem.n, problem.k, problem.layout
    return operand(m, k, layout[0]), operand(k, n, layout[1])


def _product_into(
    theirs: Callable[..., torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    config: GemmConfig | None,
) -> torch.Tensor:
    plan = plan_of(a, b, out, config) if _writable(a, b, out) else WITH_TORCH
    if plan.config is None:
        return theirs(a, b, out=out)
    n = b.shape[1]
    if not launch(plan, a.view(-1, a.shape[-1]) if a.dim() != 2 else a, b, out.view(-1, n)):
        return theirs(a, b, out=out)
    torch.autograd.graph.increment_version(out)  # as torch does for what it writes in place
    return out


def _writable(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether out needs none of torch's checks, resizing, warnings or copies."""
    if why_torch(a, out) is not None or out.is_inference():
        return False
    if a.requires_grad or b.requires_grad or out.requires_grad:
        return False
    if (
        b.dim() != 2
        or a.dim() < 2
        or out.shape != (*a.shape[:-1], b.shape[1])
        or not out.is_contiguous()
    ):
        return False
    memory = out.untyped_storage().data_ptr()
    return memory not in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())


def planned(plan: Plan, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A (..., k) @ b (k, n) on the kernel of their plan; differentiable."""
    n = b.shape[1]
    if a.dim() == 2:
        output: Output = (a.shape[0], n), (n, 1), a.dtype
    else:
        output = output_of(a, n)
        a = a.view(-1, a.shape[-1])
    if is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return differentiable(matmul, plan, output, a, b)
    return product(plan, a, b, output)
