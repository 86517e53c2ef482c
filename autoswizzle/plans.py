"""From operands to a launch: the memo of plans, their first launch, what a capture may do."""

import logging
from dataclasses import dataclass, field

import torch

from autoswizzle import dispatch
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import Decision, Launcher, decide, dispatcher
from autoswizzle.errors import AutoswizzleError, CacheError, CandidateError, UnavailableError
from autoswizzle.hardware import Gpu
from autoswizzle.operands import (
    as_matrices,
    fp32_precision,
    is_regular,
    problem_of,
    torch_matmul,
)
from autoswizzle.problem import ALIGNMENT, GemmProblem

PASS_US = 2.0  # an elementwise kernel's device time however small it is, H200, of its order

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Plan:
    """How operands of certain shapes, strides and alignment are multiplied.

    config: None for torch. forced: it is the caller's, so its failure is an error.
    launcher: its kernel, loaded at the first launch; a CUDA-graph capture runs no other.
    pays_a_pass: it saves more time over torch than one more pass over the output takes.
    reorders_sums: programs add up an output element in an order that may change between calls.
    """

    problem: GemmProblem | None = None
    config: GemmConfig | None = None
    forced: bool = False
    launcher: Launcher | None = None
    pays_a_pass: bool = True
    reorders_sums: bool = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.reorders_sums = config is not None and (config.split_k > 1 or config.stream_k)


WITH_TORCH = Plan()


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
        return WITH_TORCH
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
            return WITH_TORCH
        plan = _new_plan(a, b, out, config)
        dispatch.remember(plans, key, plan)
    return plan


def _new_plan(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, config: GemmConfig | None
) -> Plan:
    matrices = as_matrices(a, b)
    if matrices is None:
        return WITH_TORCH
    problem = problem_of(*matrices, None if out is None else out.view(-1, b.shape[1]))
    try:
        gpu = dispatch.gpu_of(a.get_device())
    except UnavailableError as error:
        _log.info("%s", error)
        return WITH_TORCH
    if config is not None:
        dispatch.check_config(config, problem, gpu)
        return Plan(problem, config, forced=True) if config != TORCH else WITH_TORCH
    if not all(map(is_regular, matrices)):
        return WITH_TORCH
    decision = decide(problem, gpu)
    if decision.source == "miss":
        decision = _on_miss(decision, problem, gpu, a.get_device())
    if decision.uses_torch:
        return WITH_TORCH
    return Plan(problem, decision.config, pays_a_pass=pays_a_pass(decision, problem, gpu))


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


def _on_miss(decision: Decision, problem: GemmProblem, gpu: Gpu, device: int) -> Decision:
    policy = dispatcher().settings.on_miss
    if policy == "error":
        near = dispatcher().near_miss(problem, gpu)
        raise CacheError(
            f"no tuned entry for {problem} on {gpu.name} (AUTOSWIZZLE_ON_MISS=error); "
            f"nearest: {near or 'none'}; tune it with: autoswizzle tune {problem}"
        )
    if policy == "tune" and dispatcher().claim(problem, gpu):
        _tune(problem, device)
        return decide(problem, gpu)
    return decision


def _tune(problem: GemmProblem, device: int) -> None:
    from autoswizzle.tuning import tune

    try:
        [result] = tune([problem], devices=[device], progress=False).results
        failure = result.error
    except AutoswizzleError as error:  # an unwritable cache, say: the entry is used all the same
        failure = str(error)
    if failure is not None:
        _log.warning("tuning %s: %s", problem, failure)


def product(plan: Plan, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A (m, k) @ b (k, n) as the plan says; not differentiable."""
    out = a.new_empty((a.shape[0], b.shape[1]))
    return out if launch(plan, a, b, out) else torch_matmul(a, b)


def launch(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
    """Run the plan's kernel into out; False when torch must do it this time."""
    if plan.config is None or plan.problem is None:
        return False
    if plan.reorders_sums and torch.are_deterministic_algorithms_enabled():
        return False
    if plan.launcher is None:
        return _first_launch(plan, plan.config, plan.problem, a, b, out)
    plan.launcher(a, b, out)
    return True


def _first_launch(
    plan: Plan,
    config: GemmConfig,
    problem: GemmProblem,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
) -> bool:
    """Load the kernel and launch it, one thread at a time; one that fails is torch from now on."""
    if _capturing(a):
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
