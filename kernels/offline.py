"""Compiling a kernel for a GPU that need not be here, and reading what it takes of an SM."""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from threading import Lock, get_ident
from typing import Any, TextIO

import torch
from torch import Tensor

from autoswizzle.config import GemmConfig
from autoswizzle.errors import CompileError, UnavailableError
from autoswizzle.hardware import WARP_SIZE, Gpu
from autoswizzle.kernels.compiler import compile_errors
from autoswizzle.kernels.family import Call, family
from autoswizzle.kernels.launch import interpreted, without_padding
from autoswizzle.problem import ALIGNMENT, TORCH_NAMES, GemmProblem
from autoswizzle.simulator.resources import Resources, why_infeasible

MAX_TENSOR_MEMORY = 512  # columns of a Blackwell SM's tensor memory (PTX ISA, tcgen05)
_printing = Lock()  # a process has one standard output


class _OwnWords(io.StringIO):
    """Keeps what the thread that made it prints; what others print goes to others."""

    def __init__(self, others: TextIO) -> None:
        super().__init__()
        self._others = others
        self._thread = get_ident()

    def write(self, text: str) -> int:
        """As any text stream does."""
        return super().write(text) if get_ident() == self._thread else self._others.write(text)


def compile_for(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Resources:
    """What config takes of an SM of gpu for problem, from the compiled kernel. Needs no GPU.

    spill_bytes: of a thread's spill stores. warnings: ptxas's of serialised wgmma. Raises
    CompileError with a one-line reason when it does not compile or no block fits on an SM.
    """
    with _compiler_log() as said:
        kernel = compiled(config, problem, gpu)
    log = said.getvalue()
    used = re.findall(r"Used (\d+) registers", log)
    if not used:
        raise CompileError(f"ptxas must report registers, got {log[-200:]!r}")
    resources = Resources(
        registers=max(map(int, used)),
        shared_bytes=kernel.metadata.shared,
        num_warps=kernel.metadata.num_warps,
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill stores", log))),
        warnings=tuple(
            re.sub(r"^ptxas[\w-]*\s+\w+\s*:\s*", "", line)
            for line in log.splitlines()
            if "wgmma" in line and "serializ" in line
        ),
    )
    columns = getattr(kernel.metadata, "tmem_size", None) or 0
    if columns > MAX_TENSOR_MEMORY:
        raise CompileError(f"tensor memory must be <= {MAX_TENSOR_MEMORY} columns, got {columns}")
    reason = why_infeasible(resources, gpu)
    if reason is not None:
        raise CompileError(reason)
    return resources


def compiled(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Any:  # noqa: ANN401
    """The CompiledKernel of config for gpu, on operands as problem describes them."""
    call = call_for(config, problem)
    if interpreted(call):
        raise UnavailableError("compiling needs TRITON_INTERPRET unset")
    with compile_errors():
        return compile_call(call, gpu.capability)


def call_for(config: GemmConfig, problem: GemmProblem) -> Call:
    """The launch of config's kernel on meta_operands, which for padded ones are the padded copies.

    Raises LaunchError where config's family can't take them.
    """
    if config.padded:
        config, problem = without_padding(config, problem)
    return family(config.kernel).call(config, problem, *meta_operands(problem))


def meta_operands(problem: GemmProblem) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and out without memory, laid out and aligned as problem says.

    An unaligned problem is one by its extents, or else by bases at odd elements.
    """
    odd_base = not problem.aligned and replace(problem, aligned=None).aligned

    def operand(rows: int, cols: int, transposed: bool, dtype: str) -> Tensor:
        inner = rows if transposed else cols
        element = getattr(torch, TORCH_NAMES[dtype])
        if problem.aligned:
            unit = ALIGNMENT // element.itemsize
            inner = -(-inner // unit) * unit
        strides = (1, inner) if transposed else (inner, 1)
        base = torch.empty(2**62 // 16, dtype=element, device="meta")
        return base.as_strided((rows, cols), strides, 1 if odd_base else 0)

    m, n, k = problem.m, problem.n, problem.k
    return (
        operand(m, k, problem.layout[0] == "t", problem.dtype),
        operand(k, n, problem.layout[1] == "t", problem.dtype),
        operand(m, n, False, problem.out_dtype),
    )


def compile_call(call: Call, capability: int) -> Any:  # noqa: ANN401
    """Compile for "cuda" capability as JITFunction.run does for the current device."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.runtime.jit import create_function_from_signature

    call = call.overlapping(capability)
    target = GPUTarget("cuda", capability, WARP_SIZE)
    backend = make_backend(target)
    binder = create_function_from_signature(call.kernel.signature, call.kernel.params, backend)
    arguments = call.arguments(torch.device("meta"))
    keywords = {**call.options, "debug": False}
    bound, specialization, _ = binder(**arguments, **keywords)
    options, signature, constants, attributes = call.kernel._pack_args(
        backend, keywords, bound, specialization, keywords
    )
    source = GluonASTSource if call.kernel.is_gluon() else ASTSource
    return triton.compile(
        source(call.kernel, signature, constants, attributes),
        target=target,
        options=options.__dict__,
    )


@contextmanager
def _compiler_log() -> Iterator[io.StringIO]:
    """What ptxas says meanwhile, of spills and of wgmma; what was compiled before is compiled anew.

    Triton prints it. Another run of ptxas would not do: triton's options differ by version.
    """
    from triton import knobs

    with (
        _printing,
        knobs.compilation.scope(),
        knobs.nvidia.scope(),
        redirect_stdout(_OwnWords(sys.stdout)) as said,
    ):
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        yield said
