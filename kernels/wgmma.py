"""The wgmma family on the host: descriptors and compile-time constants of a launch."""

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import WARP_SIZE, detect
from autoswizzle.kernels.family import Call, Scratch
from autoswizzle.kernels.order import log_side
from autoswizzle.kernels.wgmma_parts import Plan
from autoswizzle.kernels.wgmma_pipelined import pipelined
from autoswizzle.kernels.wgmma_specialized import specialized
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.space import consumers, grid, multiplied, pieces, row_strips, tail

GLUON_DTYPES = {"fp16": gl.float16, "bf16": gl.bfloat16, "fp32": gl.float32}
_STORE_BUFFERS = 2  # one is written while the copy engine reads the other
# Registers a thread must have beside its sums to add partial sums to all of them at once: with 48,
# as for 256x192, one is read back in every k step (ptxas 13.4).
_ADDING_REGISTERS = 64


def call(
    config: GemmConfig, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> Call:
    """The launch of config on a (m, k), b (k, n), out (m, n).

    a and b stored as problem.layout says, out row-major; bases and row strides multiples of 16
    bytes. Raises LaunchError otherwise.
    """
    plan = plan_of(config, problem)
    grid_m, grid_n = grid(config, problem)
    num_sms = detect(a.device.index).num_sms if a.is_cuda else 1
    whole, together, parts = grid_m * grid_n, 1, 1
    if config.stream_k:
        whole, together, parts = tail(config, problem, num_sms)
    elif config.split_k > 1:
        whole, parts = 0, config.split_k
    units = -(-(grid_m * grid_n - whole) // together) * parts
    args = operands(plan, problem, a, b, out) | {"group_size": config.group_size}
    if config.warp_specialize != "none":
        args |= {"whole": whole, "together": together, "parts": parts}
    return Call(
        kernel=pipelined if config.warp_specialize == "none" else specialized,
        args=args,
        tiles=num_sms if config.stream_k and whole else whole + units,
        multiple=1 if config.stream_k else parts,
        constants={"plan": plan.on_device()},
        options={"num_warps": config.num_warps},
        persistent=True,
        overlaps=True,
        scratch=Scratch(
            counter=int(plan.dynamic),
            partials=max(1, units) * config.block_m * config.block_n if plan.divided else 0,
            flags=max(1, units) * plan.shares if plan.divided else 0,
        ),
    )


def operands(
    plan: Plan, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> dict[str, Any]:
    """Descriptors and extents as the kernel multiplies: of plan.swapped, of C's transpose."""
    turn = -1 if plan.swapped else 1
    (left, right), (m, n) = (("a", a), ("b", b))[::turn], (problem.m, problem.n)[::turn]
    dtype, out_dtype = GLUON_DTYPES[problem.dtype], GLUON_DTYPES[problem.out_dtype]
    below, beside = int(plan.along == 0), int(plan.along == 1)

    def described(
        operand: tuple[str, torch.Tensor],
        block: list[int],
        split: list[int],
        dtype: gl.dtype,
        transposed: bool,
    ) -> TensorDescriptor:
        split = split[::turn] if plan.along >= 0 else []
        return descriptor(*operand, block[::turn], dtype, transposed != plan.swapped, split)

    def right_piece(columns: int) -> TensorDescriptor:
        block = [plan.block_k, columns]
        return described(right, block, [0, beside], dtype, plan.b_transposed)

    rows = plan.rows
    return {
        "a_desc": described(left, [rows, plan.block_k], [below, 0], dtype, plan.a_transposed),
        "b_desc": right_piece(plan.pieces[0]),
        "tail_desc": right_piece(plan.pieces[-1]),
        "c_desc": described(
            ("out", out), [rows, plan.store_n], [below, beside], out_dtype, plan.swapped
        ),
        "m": m,
        "n": n,
        "k": problem.k,
    }


def plan_of(config: GemmConfig, problem: GemmProblem) -> Plan:
    """The compile-time constants of config for problem."""
    shares = consumers(config) if config.warp_specialize == "cooperative" else 1
    alternate = 2 if config.warp_specialize == "pingpong" else 1
    strips = row_strips(config)
    block_m, block_n = multiplied(config)
    rows = block_m // shares // strips
    turned = tuple(kind == "t" for kind in problem.layout)
    if config.swap_ab:
        turned = not turned[1], not turned[0]
    step_bytes = (config.block_m + config.block_n) * config.block_k * problem.itemsize
    registers = 160 if shares == 3 else 240
    left = registers - strips * rows * block_n // (WARP_SIZE * config.num_warps)
    return Plan(
        block_m=block_m,
        block_n=block_n,
        block_k=config.block_k,
        pieces=pieces(config),
        rows=rows,
        strips=strips,
        shares=shares,
        alternate=alternate,
        warps=config.num_warps,
        stages=config.num_stages,
        step_bytes=step_bytes,
        store_n=block_n // config.epilogue_subtile,
        stores=min(_STORE_BUFFERS, strips * config.epilogue_subtile),
        a_transposed=turned[0],
        b_transposed=turned[1],
        instruction_k=32 // problem.itemsize,
        precision="tf32" if problem.dtype == "fp32" else "ieee",
        swizzle=config.swizzle,
        log_side=log_side(config.swizzle, *grid(config, problem)),
        dynamic=config.scheduling == "dynamic",
        divided=config.split_k > 1 or config.stream_k,
        added=config.epilogue_subtile if left >= _ADDING_REGISTERS else 1,
        consumer_registers=registers,
        producer_registers=24,
        swapped=config.swap_ab,
    )


def descriptor(
    name: str,
    tensor: torch.Tensor,
    block: list[int],
    dtype: gl.dtype,
    transposed: bool,
    split: list[int],
) -> TensorDescriptor:
    """A TMA descriptor of tensor as it is stored: its transpose if transposed.

    split: of a cluster's block, 1 for the dimension that its thread blocks divide; else empty.
    """
    turn = -1 if transposed else 1
    (height, width), (stride, inner_stride) = tensor.shape[::turn], tensor.stride()[::turn]
    unit = ALIGNMENT // tensor.itemsize
    if height == 1:  # its stride is never used, but must be legal
        stride = -(-width // unit) * unit
    if (width > 1 and inner_stride != 1) or stride % unit or tensor.data_ptr() % ALIGNMENT:
        raise LaunchError(
            f"{name} must have a unit inner stride and base and row stride that are "
            f"multiples of {ALIGNMENT} bytes for TMA, got strides {tuple(tensor.stride())}"
        )
    block = block[::turn]
    blocks = {"cga_layout": [split[::turn]]} if split else {}
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype, **blocks)
    return TensorDescriptor(tensor, [height, width], [stride, 1], block, layout)
