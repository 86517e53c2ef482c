"""The wgmma family on the host: descriptors and compile-time constants of a launch."""

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.kernels.family import Call, Scratch
from autoswizzle.kernels.order import log_side
from autoswizzle.kernels.wgmma_parts import Plan
from autoswizzle.kernels.wgmma_pipelined import pipelined
from autoswizzle.kernels.wgmma_specialized import specialized
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.space import grid

_GLUON_DTYPES = {"fp16": gl.float16, "bf16": gl.bfloat16, "fp32": gl.float32}
_STORE_BUFFERS = 2  # one is written while the copy engine reads the other


def call(
    config: GemmConfig, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> Call:
    """The launch of config on a (m, k), b (k, n), out (m, n).

    a and b stored as problem.layout says, out row-major; bases and row strides multiples of 16
    bytes. Raises LaunchError otherwise.
    """
    plan = _plan(config, problem)
    dtype, out_dtype = _GLUON_DTYPES[problem.dtype], _GLUON_DTYPES[problem.out_dtype]
    a_block = [plan.rows, plan.block_k]
    b_blocks = [[plan.block_k, piece] for piece in plan.pieces]
    args = {
        "a_desc": _descriptor("a", a, a_block, dtype, plan.a_transposed),
        "b_desc": _descriptor("b", b, b_blocks[0], dtype, plan.b_transposed),
        "tail_desc": _descriptor("b", b, b_blocks[-1], dtype, plan.b_transposed),
        "c_desc": _descriptor("out", out, [plan.rows, plan.store_n], out_dtype, False),
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "group_size": config.group_size,
    }
    grid_m, grid_n = grid(config, problem)
    items = grid_m * grid_n * plan.splits
    split = plan.splits > 1
    return Call(
        kernel=pipelined if config.warp_specialize == "none" else specialized,
        args=args,
        tiles=items,
        constants={"plan": plan.on_device()},
        options={"num_warps": config.num_warps},
        persistent=True,
        scratch=Scratch(
            counter=1 + grid_m * grid_n * plan.shares if split else int(plan.dynamic),
            partials=items * config.block_m * config.block_n if split else 0,
        ),
    )


def _plan(config: GemmConfig, problem: GemmProblem) -> Plan:
    shares = 2 if config.warp_specialize == "cooperative" and config.num_warps == 4 else 1
    alternate = 2 if config.warp_specialize == "pingpong" else 1
    pieces = (config.block_n,) if config.block_n & (config.block_n - 1) == 0 else (128, 64)
    rows = config.block_m // shares
    step_bytes = (config.block_m + config.block_n) * config.block_k * problem.itemsize
    return Plan(
        block_m=config.block_m,
        block_n=config.block_n,
        block_k=config.block_k,
        pieces=pieces,
        rows=rows,
        shares=shares,
        alternate=alternate,
        warps=config.num_warps,
        stages=config.num_stages,
        step_bytes=step_bytes,
        store_n=config.block_n // config.epilogue_subtile,
        stores=min(_STORE_BUFFERS, config.epilogue_subtile),
        a_transposed=problem.layout[0] == "t",
        b_transposed=problem.layout[1] == "t",
        instruction_k=32 // problem.itemsize,
        precision="tf32" if problem.dtype == "fp32" else "ieee",
        swizzle=config.swizzle,
        log_side=log_side(config.swizzle, *grid(config, problem)),
        dynamic=config.scheduling == "dynamic",
        splits=config.split_k,
        consumer_registers=240,
        producer_registers=24,
    )


def _descriptor(
    name: str, tensor: torch.Tensor, block: list[int], dtype: gl.dtype, transposed: bool
) -> TensorDescriptor:
    """A TMA descriptor of tensor as it is stored: its transpose if transposed."""
    turn = -1 if transposed else 1
    (height, width), (stride, inner_stride) = tensor.shape[::turn], tensor.stride()[::turn]
    unit = ALIGNMENT // tensor.itemsize
    if height == 1:  # its stride is never used, but must be legal
        stride = -(-width // unit) * unit
    if (width > 1 and inner_stride != 1) or stride % unit or tensor.data_ptr() % ALIGNMENT:
        raise LaunchError(
            f"wgmma needs {name} with unit inner stride and base and row stride multiples of "
            f"{ALIGNMENT} bytes, got strides {tuple(tensor.stride())}"
        )
    block = block[::turn]
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(tensor, [height, width], [stride, 1], block, layout)
