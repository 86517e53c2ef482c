"""The multicast family on the host: descriptors and compile-time constants of a launch."""

from dataclasses import replace

import torch

from autoswizzle.config import GemmConfig
from autoswizzle.kernels.family import Call, compile_options
from autoswizzle.kernels.multicast_specialized import multicast
from autoswizzle.kernels.wgmma import operands, plan_of
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
    grid_m, grid_n = grid(config, problem)
    return Call(
        kernel=multicast,
        args=operands(plan, problem, a, b, out) | {"group_size": config.group_size},
        tiles=grid_m * grid_n,
        constants={"plan": plan.on_device()},
        options=compile_options(config) | {"num_ctas": cluster_size(config)},
        persistent=True,
        overlaps=True,
        blocks=cluster_size(config),
    )


def _cluster_plan(config: GemmConfig, problem: GemmProblem) -> Plan:
    """The plan of a wgmma kernel with every extent of a tile, but not step_bytes, a cluster's."""
    plan = plan_of(config, problem)
    height, width = (config.cluster_m, config.cluster_n)[:: -1 if plan.swapped else 1]
    return replace(
        plan,
        block_m=plan.block_m * height,
        rows=plan.rows * height,
        block_n=plan.block_n * width,
        pieces=tuple(piece * width for piece in plan.pieces),
        store_n=plan.store_n * width,
        along=width - 1,
    )
