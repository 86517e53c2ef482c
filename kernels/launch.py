"""Launching one kernel: compile it for the operands' GPU, choose its grid, run it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError, ProblemError
from autoswizzle.hardware import detect
from autoswizzle.kernels.compiler import compile_errors
from autoswizzle.kernels.family import Call, family
from autoswizzle.kernels.padding import copy_call, multiply_padded
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import Resources, resident_blocks

INTERPRETED_PROGRAMS = 4  # of a persistent kernel in the interpreter: few, so that they loop


def run(config: GemmConfig, problem: GemmProblem, a: Tensor, b: Tensor, out: Tensor) -> None:
    """out[m, n] = a[m, k] @ b[k, n] on a's device and its current stream.

    The operands are those of problem, of any strides that the kernel allows. Under
    TRITON_INTERPRET=1 they are CPU tensors. The first call of a configuration compiles. Raises
    ProblemError for other extents, CompileError, and LaunchError when the launch is refused.
    """
    check_extents(problem, a, b, out)
    if config.padded:
        multiply = partial(run, *without_padding(config, problem))
        multiply_padded(problem.layout, (a, b, out), multiply, copy)
    else:
        launch(family(config.kernel).call(config, problem, a, b, out), a.device, str(config))


def without_padding(config: GemmConfig, problem: GemmProblem) -> tuple[GemmConfig, GemmProblem]:
    """What runs between the copies of a padded configuration."""
    return replace(config, padded=False), replace(problem, aligned=True)


def copy(source: Tensor, target: Tensor) -> None:
    """target[rows, cols] = source[rows, cols], whatever their alignment; raises as run does."""
    launch(copy_call(source, target), source.device, "the copy to padded rows")


def launch(call: Call, device: torch.device, name: str) -> None:
    """Compile if need be, and launch on the device's current stream; see run."""
    if interpreted(call):
        programs = min(call.tiles, INTERPRETED_PROGRAMS) if call.persistent else call.tiles
        call.kernel[(programs,)](**call.arguments(device))
        return
    with current_device(device):
        call = call.overlapping(detect(device.index).capability)
        kernel, resources = load(call)
        grid = (programs_of(call, resources, device), 1, 1)
        arguments = call.arguments(device)
        try:
            kernel[grid](*arguments.values())
        except RuntimeError as error:  # what triton's launcher raises for a driver error
            raise LaunchError(f"{name}: {error}") from error


def load(call: Call) -> tuple[Any, Resources]:
    """The compiled kernel, loaded on the current device, and what it takes of an SM.

    Raises CompileError.
    """
    arguments = call.arguments(torch.device("meta"))
    with compile_errors():
        kernel = call.kernel.warmup(**arguments, **call.options, grid=(1,))
        kernel._init_handles()  # loads the binary; unlike kernel.run it also fails the second time
    resources = Resources(
        registers=kernel.n_regs,
        shared_bytes=kernel.metadata.shared,
        num_warps=kernel.metadata.num_warps,
    )
    return kernel, resources


def programs_of(call: Call, resources: Resources, device: torch.device) -> int:
    """The launch's programs: every tile, or for a persistent kernel at most what is resident."""
    if not call.persistent:
        return call.tiles
    gpu = detect(device.index)
    resident = resident_blocks(resources, gpu) * gpu.num_sms
    if resident == 0:
        raise LaunchError(f"no block of {resources} fits on an SM of {gpu.name}")
    resident //= call.blocks
    return min(call.tiles, max(resident // call.multiple, 1) * call.multiple)


def interpreted(call: Call) -> bool:
    """Whether TRITON_INTERPRET made the kernel a Python function."""
    from triton.runtime.jit import JITFunction

    return not isinstance(call.kernel, JITFunction)


@contextmanager
def current_device(device: torch.device) -> Iterator[None]:
    """Triton launches on the current device: make it device for a while, if it is another.

    Raises LaunchError for a device that is not CUDA's.
    """
    if device.type != "cuda":
        raise LaunchError(f"operands must be on a CUDA device, got {device}")
    if torch.cuda.current_device() == device.index:
        yield
    else:
        with torch.cuda.device(device):
            yield


def check_extents(problem: GemmProblem, a: Tensor, b: Tensor, out: Tensor) -> None:
    """Raise ProblemError unless the operands have the problem's extents."""
    m, n, k = problem.m, problem.n, problem.k
    expected = {"a": (m, k), "b": (k, n), "out": (m, n)}
    for (name, shape), operand in zip(expected.items(), (a, b, out), strict=True):
        if tuple(operand.shape) != shape:
            raise ProblemError(f"{name} must have shape {shape}, got {tuple(operand.shape)}")
