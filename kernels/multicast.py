"""The multicast family on the host: descriptors and compile-time constants of a launch."""

from dataclasses import replace

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from autoswizzle.config import GemmConfig
from autoswizzle.kernels.family import Call, compile_options
from autoswizzle.kernels.multicast_specialized import multicast
from autoswizzle.kernels.wgmma import GLUON_DTYPES, descriptor, plan_of
from autoswizzle.kernels.wgmma_parts import Plan
from autoswizzle.problem import GemmProblem
from autoswizzle.space import cluster_size, grid


def call(
    config: GemmConfig, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
) -> Call:
    """The launch of config on a (m, k), b (k, n), out (m, n).

    a and b stored as problem.layout says, out row-major; bases and row strides multiples of 16
    bytes. Raises LaunchError otherwise.
    """
    plan = _cluster_plan(config, problem)
    below, beside = 1 - plan.along, plan.along

    def operand(
        name: str, tensor: torch.Tensor, block: list[int], split: list[int], transposed: bool
    ) -> TensorDescriptor:
        """A descriptor of a cluster's block of tensor; split: 1 for what its blocks divide."""
        dtype = GLUON_DTYPES[problem.out_dtype if name == "out" else problem.dtype]
        whole = descriptor(name, tensor, block, dtype, transposed)
        split = split[::-1] if transposed else split
        layout = gl.NVMMASharedLayout.get_default_for(whole.block_shape, dtype, cga_layout=[split])
        return replace(whole, layout=layout)

    b_blocks = [[plan.block_k, piece] for piece in plan.pieces]
    grid_m, grid_n = grid(config, problem)
    return Call(
        kernel=multicast,
        args={
            "a_desc": operand("a", a, [plan.rows, plan.block_k], [below, 0], plan.a_transposed),
            "b_desc": operand("b", b, b_blocks[0], [0, beside], plan.b_transposed),
            "tail_desc": operand("b", b, b_blocks[-1], [0, beside], plan.b_transposed),
            "c_desc": operand("out", out, [plan.rows, plan.store_n], [below, beside], False),
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "group_size": config.group_size,
        },
        tiles=grid_m * grid_n,
        constants={"plan": plan.on_device()},
        options=compile_options(config) | {"num_ctas": cluster_size(config)},
        persistent=True,
        overlaps=True,
        blocks=cluster_size(config),
    )


def _cluster_plan(config: GemmConfig, problem: GemmProblem) -> Plan:
    """The plan of a wgmma kernel with every extent of a tile, but not step_bytes, a cluster's."""
    plan, height, width = plan_of(config, problem), config.cluster_m, config.cluster_n
    return replace(
        plan,
        block_m=plan.block_m * height,
        rows=plan.rows * height,
        block_n=plan.block_n * width,
        pieces=tuple(piece * width for piece in plan.pieces),
        store_n=plan.store_n * width,
        along=config.cluster_n - 1,
    )
