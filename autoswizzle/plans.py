"""From operands to a launch: the memo of plans, their first launch, what a capture may do."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import is_grad_enabled

from autoswizzle import dispatch
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import Decision, decide, dispatcher
from autoswizzle.errors import AutoswizzleError, CacheError, CandidateError, UnavailableError
from autoswizzle.hardware import Gpu
from autoswizzle.operands import (
    Output,
    as_matrices,
    fp32_precision,
    is_regular,
    is_row_major,
    problem_of,
    torch_mm,
    why_torch,
)
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.recall import LINEAR, Known, aligned, learn

if TYPE_CHECKING:
    from autoswizzle.kernels.bound import Launcher

try:  # torch.empty on the current device, past its dispatcher, as Inductor's code allocates
    from torch._C import _cuda_getDevice as _current_device
    from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]
except ImportError:  # a build without CUDA

    def _current_device() -> int:
        return -2  # no tensor's


PASS_US = 2.0  # an elementwise kernel's device time however small it is, H200, of its order

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Plan:
    """How operands of certain shapes, strides and alignment are multiplied.

    config: None for torch. row_major: how a and b are stored, as their gradients will be.
    forced: the config is the caller's, so its failure is an error.
    launcher: its kernel, loaded at the first launch; a CUDA-graph capture runs no other.
    pays_a_pass: it saves more time over torch than one more pass over the output takes.
    device: index of the operands'.
    """

    problem: GemmProblem | None = None
    config: GemmConfig | None = None
    device: int = -1
    row_major: tuple[bool, bool] = (True, True)
    forced: bool = False
    launcher: "Launcher | None" = None
    pays_a_pass: bool = True


WITH_TORCH = Plan()
TORCH_FOR_NOW = Plan()  # in a state that passes


def quick(known: Known, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """The product of known operands by the kernel of their plan; None: go the long way."""
    at_a, at_b = a.data_ptr(), b.data_ptr()
    if not aligned(at_a, at_b) or (known.tracked and is_grad_enabled()):
        return None
    return started(known.plan, known.output, at_a, at_b)


def plan_for(kind: str, known: Known | None, a: torch.Tensor, b: torch.Tensor) -> Plan:
    """The plan of any two arguments of torch.matmul, or of F.linear with a matrix as weight.

    known: what recall said of them; what it did not know, it knows from then on.
    """
    if known is not None and aligned(a.data_ptr(), b.data_ptr()):
        return known.plan  # type: ignore[no-any-return]
    if why_torch(a, b) is not None:
        return WITH_TORCH
    plans = dispatcher().plans
    plan = plan_of(a, b.t() if kind == LINEAR else b)
    if plan is not TORCH_FOR_NOW:
        learn(plans, kind, a, b, plan)
    return plan


def plan_of(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    config: GemmConfig | None = None,
) -> Plan:
    """The memoised plan of operands that passed why_torch."""
    dtype = a.dtype
    try:
        bases = a.data_ptr() % ALIGNMENT == 0, b.data_ptr() % ALIGNMENT == 0
    except RuntimeError:  # a wrapper without memory: a gradient batched by is_grads_batched
        return TORCH_FOR_NOW
    shape: tuple[int, ...] = a.shape
    strides = a.stride()
    if len(shape) != 2 and b.dim() == 2 and a.numel() > 0 and shape and a.is_contiguous():
        k = shape[-1]  # folded, so that what prepare loads serves batches of tokens as well
        shape, strides = (a.numel() // k, k), (k, 1)
    key: tuple[object, ...] = (
        shape,
        strides,
        b.shape,
        b.stride(),
        dtype,
        a.get_device(),
        bases,
    )
    if dtype is torch.float32:
        key += (fp32_precision(),)
    if out is not None or config is not None:
        key += (config, None if out is None else out.data_ptr() % ALIGNMENT == 0)
    plans = dispatcher().plans
    plan: Plan | None = plans.get(key)
    if plan is None:
        if _capturing(a):  # no file access, and what is not loaded by now can't be
            return TORCH_FOR_NOW
        plan = _new_plan(a, b, out, config)
        if plan is not TORCH_FOR_NOW:
            dispatch.remember(plans, key, plan)
    return plan


def _new_plan(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, config: GemmConfig | None
) -> Plan:
    matrices = as_matrices(a, b)
    if matrices is None:
        return WITH_TORCH
    device = a.get_device()
    row_major = is_row_major(matrices[0]), is_row_major(matrices[1])
    problem = problem_of(*matrices, None if out is None else out.view(-1, b.shape[1]))
    try:
        gpu = dispatch.gpu_of(device)
    except UnavailableError as error:
        _log.info("%s", error)
        return WITH_TORCH
    if config is not None:
        dispatch.check_config(config, problem, gpu)
        return (
            Plan(problem, config, device, row_major, forced=True) if config != TORCH else WITH_TORCH
        )
    if not all(map(is_regular, matrices)):
        return WITH_TORCH
    decision = settled(problem, gpu, device)
    if decision.uses_torch:
        return TORCH_FOR_NOW if _put_off(decision) else WITH_TORCH
    pays = pays_a_pass(decision, problem, gpu)
    return Plan(problem, decision.config, device, row_major, pays_a_pass=pays)


def pays_a_pass(decision: Decision, problem: GemmProblem, gpu: Gpu) -> bool:
    """Whether the entry saves more than reading and writing the output once more costs.

    torch adds a bias inside its product, our kernels leave it to such a pass. Without an entry the
    caller or a policy wants the kernel.
    """
    entry = decision.entry
    if entry is None or entry.torch_us is None:
        return True
    moved = 2 * problem.m * problem.n * problem.out_itemsize
    return entry.torch_us - entry.time_us > PASS_US + moved / gpu.dram_gbs / 1e3


def settled(problem: GemmProblem, gpu: Gpu, device: int) -> Decision:
    """What runs problem once an untuned one got what the policy has for it; raises CacheError."""
    decision = decide(problem, gpu)
    if decision.source != "miss":
        return decision
    policy = dispatcher().settings.on_miss
    if policy == "error":
        near = dispatcher().near_miss(problem, gpu)
        raise CacheError(
            f"no tuned entry for {problem} on {gpu.name} (AUTOSWIZZLE_ON_MISS=error); "
            f"nearest: {near or 'none'}; tune it with: autoswizzle tune {problem}"
        )
    if _put_off(decision):
        _log.debug("%s is not tuned in torch's deterministic mode: noise would choose", problem)
    elif policy == "tune" and dispatcher().claim(problem, gpu):
        _tune(problem, device)
        return decide(problem, gpu)
    return decision


def _put_off(decision: Decision) -> bool:
    """Whether what decides nothing yet will be tuned once torch's deterministic mode is off."""
    waits = decision.source == "miss" and dispatcher().settings.on_miss == "tune"
    return waits and torch.are_deterministic_algorithms_enabled()


def _tune(problem: GemmProblem, device: int) -> None:
    from autoswizzle.tuning import tune

    try:
        [result] = tune([problem], devices=[device], progress=False).results
        failure = result.error
    except AutoswizzleError as error:  # an unwritable cache, say: the entry is used all the same
        failure = str(error)
    if failure is not None:
        _log.warning("tuning %s: %s", problem, failure)


def product(plan: Plan, a: torch.Tensor, b: torch.Tensor, output: Output) -> torch.Tensor:
    """A (m, k) @ b (k, n) on the kernel of their plan, in the extents (..., n) of output.

    Not differentiable, and no view, as torch.matmul's result is none.
    """
    result = started(plan, output, a.data_ptr(), b.data_ptr())
    if result is not None:
        return result
    result = a.new_empty(output[0])
    rows = result if result.dim() == 2 else result.view(-1, b.shape[1])
    if not launch(plan, a, b, rows):
        torch_mm(a, b, out=rows)
    return result


def started(
    plan: Plan, output: Output, at_a: int, at_b: int, out: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The product of operands of this plan at these addresses; None: launch it the long way.

    out: where it shall be, aligned and contiguous.
    """
    launcher = plan.launcher
    if launcher is None or not launcher.direct or plan.device != _current_device():
        return None
    if out is None:
        out = _empty_strided_cuda(*output)
    try:
        launcher.start(at_a, at_b, out.data_ptr())
    except torch.OutOfMemoryError:  # the long way says what to do without partial sums
        return None
    return out


def launch(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
    """Run the plan's kernel into out; False when torch must do it this time."""
    try:
        if plan.launcher is None:
            return _first_launch(plan, a, b, out)
        plan.launcher(a, b, out)
    except torch.OutOfMemoryError as error:  # for copies or partial sums: torch needs none
        if plan.forced:
            raise
        _log.info("torch runs %s this time: %s", plan.problem, error)
        return False
    return True


def _first_launch(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
    """Load the kernel and launch it, one thread at a time; one that fails is torch from now on."""
    config, problem = plan.config, plan.problem
    if config is None or problem is None or _capturing(a):
        return False
    with dispatcher().lock:
        try:
            launcher = plan.launcher or dispatch.bind_kernel(config, problem, a, b, out)
            launcher(a, b, out)
        except (CandidateError, UnavailableError) as error:
            if plan.forced:
                raise
            _log.warning("torch runs %s, since %s fails here: %s", problem, config, error)
            plan.config = None
            return False
        plan.launcher = launcher
    return True


def _capturing(a: torch.Tensor) -> bool:
    if not a.is_cuda:
        return False
    with torch.cuda.device(a.device):
        return torch.cuda.is_current_stream_capturing()
