"""The kernel families: where each runs, what a search tries, which rules hold."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoswizzle.config import SCHEDULINGS, SWIZZLES, WARP_SPECIALIZE, GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import rules, wgmma_rules
from autoswizzle.space.rules import TILE_RULES
from autoswizzle.space.wgmma_rules import WGMMA_RULES
from autoswizzle.toolchain import triton_version

GROUP_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel family: where it runs and which fields of GemmConfig it uses.

    triton: the oldest version that has what it needs. max_m: rows it can multiply. operands: each
    returns why none of its configurations takes a problem's operands, or None. tunables: the values
    a search tries, by field; legal values may be wider (rules). rules: each returns why a
    configuration is illegal, or None.
    """

    capabilities: tuple[int, ...]
    dtypes: tuple[str, ...]
    triton: tuple[int, int] = (3, 6)
    max_m: float = math.inf
    operands: tuple[Callable[[GemmProblem], str | None], ...] = ()
    tunables: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rules: tuple[Callable[[GemmConfig, GemmProblem, Gpu], str | None], ...] = ()

    def why_unable(self, problem: GemmProblem, gpu: Gpu) -> str | None:
        """Why none of its kernels can multiply problem on gpu, None when one may."""
        if gpu.capability not in self.capabilities:
            needed = ", ".join(map(str, self.capabilities))
            return f"needs compute capability in {needed}, got {gpu.capability}"
        if problem.dtype not in self.dtypes:
            return f"needs dtype in {', '.join(self.dtypes)}, got {problem.dtype}"
        if problem.m > self.max_m:
            return f"needs m <= {self.max_m}, got {problem.m}"
        version = triton_version()
        if version is not None and version < self.triton:
            return (
                f"needs triton >= {self.triton[0]}.{self.triton[1]}, got {version[0]}.{version[1]}"
            )
        return next(filter(None, (why_not(problem) for why_not in self.operands)), None)


FAMILIES: Mapping[str, Family] = {
    "pointer": Family(
        capabilities=(80, 86, 89, 90, 100, 120),
        dtypes=("fp16", "bf16", "fp32"),
        tunables={
            "block_m": (16, 32, 64, 128, 256),
            "block_n": (32, 64, 128, 256),
            "block_k": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 5),
            "swizzle": SWIZZLES,
            "group_size": GROUP_SIZES,
            "persistent": (False, True),
            "scheduling": SCHEDULINGS,
            "split_k": (1, 2, 3, 4, 6, 8),
        },
        rules=(*TILE_RULES, rules.pointer_split),
    ),
    "tma": Family(
        capabilities=(90, 100, 120),
        dtypes=("fp16", "bf16", "fp32"),
        tunables={
            "block_m": (64, 128, 256),
            "block_n": (64, 128, 256),
            "block_k": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (3, 4, 5, 6),
            "swizzle": SWIZZLES,
            "group_size": GROUP_SIZES,
            "persistent": (True,),
            "scheduling": SCHEDULINGS,
            "flatten": (False, True),
            "epilogue_subtile": (1, 2, 4),
            "padded": (False, True),
        },
        rules=(*TILE_RULES, rules.addressable, rules.persistent, rules.tma_loops),
    ),
    "wgmma": Family(
        capabilities=(90,),
        dtypes=("fp16", "bf16", "fp32"),
        operands=(wgmma_rules.operands,),
        tunables={
            "block_m": (64, 128, 192, 256),
            "block_n": (64, 96, 128, 160, 192, 256),
            "block_k": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (3, 4, 5, 6),
            "swizzle": SWIZZLES,
            "group_size": GROUP_SIZES,
            "persistent": (True,),
            "scheduling": SCHEDULINGS,
            "epilogue_subtile": (1, 2, 3, 4, 5, 6),
            "split_k": (1, 2, 3, 4, 6, 8),
            "stream_k": (False, True),
            "swap_ab": (False, True),
            "warp_specialize": WARP_SPECIALIZE,
            "padded": (False, True),
        },
        rules=(*WGMMA_RULES, wgmma_rules.swap, wgmma_rules.split),
    ),
    "multicast": Family(
        capabilities=(90,),
        dtypes=("fp16", "bf16"),
        triton=(3, 9),  # Gluon's TMA multicast
        tunables={
            "block_m": (128, 192, 256),
            "block_n": (128, 192, 256),
            "block_k": (64,),
            "num_warps": (4,),
            "num_stages": (3, 4, 5),
            "swizzle": SWIZZLES,
            "group_size": GROUP_SIZES,
            "persistent": (True,),
            "epilogue_subtile": (2, 3, 4, 6),
            "swap_ab": (False, True),
            "warp_specialize": ("cooperative", "pingpong"),
            "cluster_m": (1, 2),
            "cluster_n": (1, 2),
            "padded": (False, True),
        },
        rules=(wgmma_rules.multicast, *WGMMA_RULES, wgmma_rules.swap),
    ),
    "mma_sync": Family(  # few values: it shows layouts, and wgmma or pointer is faster
        capabilities=(80, 86, 89, 90, 100, 120),
        dtypes=("fp16", "bf16"),
        operands=(rules.aligned, rules.mma_sync_operands),
        tunables={
            "block_m": (128,),
            "block_n": (128,),
            "block_k": (32, 64),
            "num_warps": (4, 8),
            "num_stages": (3, 4),
            "swizzle": ("grouped",),
            "group_size": (4, 8, 16),
            "smem_a": ("128", "padded"),
            "smem_b": ("128", "padded"),
            "smem_c": ("none", "128"),
            "max_registers": (0,),
        },
        rules=(*TILE_RULES, rules.mma_sync_tile),
    ),
    "gemv": Family(
        capabilities=(80, 86, 89, 90, 100, 120),
        dtypes=("fp16", "bf16", "fp32"),
        max_m=4,  # with more rows tensor cores do the work in the time of loading
        tunables={
            "block_m": (1, 2, 4),
            "block_n": (2, 4, 8, 16, 32, 64, 128),
            "block_k": (32, 64, 128, 256, 512, 1024, 2048, 4096),
            "num_warps": (1, 2, 4, 8),
            "swizzle": ("row",),
        },
        rules=(rules.not_batched, rules.one_row, rules.gemv),
    ),
    "skinny": Family(
        capabilities=(80, 86, 89, 90, 100, 120),
        dtypes=("fp16", "bf16"),
        max_m=32,  # with more rows their loads, from L2, take as long as those of b
        operands=(rules.aligned, rules.skinny_operands),
        tunables={
            "block_m": (8, 16, 32),
            "block_n": (16, 32, 64),
            "block_k": (128, 256, 512, 1024, 2048),
            "num_warps": (2, 4, 8),
            "swizzle": ("row",),
        },
        rules=(rules.not_batched, rules.one_row, rules.skinny),
    ),
}
