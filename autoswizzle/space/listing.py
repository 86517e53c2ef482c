"""The configurations of a problem on a GPU: all of them, their tiles, their orders, the default."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autoswizzle.config import GROUPED_SWIZZLES, GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space.families import FAMILIES
from autoswizzle.space.legality import DEFAULTS, why_illegal

SLICE_COLUMNS = (64, 32)  # of an output slice: 128 and 64 bytes of 16-bit elements
_SETTLED = ("swizzle", "scheduling", "flatten")  # what does not make another tile


def branches(problem: GemmProblem, gpu: Gpu) -> dict[str, Mapping[str, tuple[Any, ...]]]:
    """The conditional space: for each family that can run problem on gpu, its tunables and values.

    group_size is in play only for the swizzles of config.GROUPED_SWIZZLES.
    """
    settled = {"padded": (not problem.fits_tma,)}
    return {
        kernel: {name: settled.get(name, values) for name, values in family.tunables.items()}
        for kernel, family in FAMILIES.items()
        if family.why_unable(problem, gpu) is None
    }


def candidates(
    problem: GemmProblem,
    gpu: Gpu,
    searched: Mapping[str, Mapping[str, tuple[Any, ...]]] | None = None,
) -> Iterator[GemmConfig]:
    """Every legal configuration with searched values; torch itself is not among them.

    searched: the values, as branches gives them, which is the default. No rule depends on the tile
    order, so legality is asked once for all orders.
    """
    for kernel, tunables in (branches(problem, gpu) if searched is None else searched).items():
        orders = _orders(tunables)
        names = [name for name in tunables if name not in ("swizzle", "group_size")]
        for values in itertools.product(*(tunables[name] for name in names)):
            chosen = dict(zip(names, values, strict=True))
            first, *others = orders
            config = GemmConfig(kernel=kernel, **chosen, **first)
            if why_illegal(config, problem, gpu) is None:
                yield config
                for order in others:
                    yield GemmConfig(kernel=kernel, **chosen, **order)


def tiles(problem: GemmProblem, gpu: Gpu) -> Iterator[GemmConfig]:
    """Every legal tile, in one tile order: static, unflattened, stored in slices of 64 or 32
    columns.
    """
    for kernel, tunables in branches(problem, gpu).items():
        settled = {name: tunables[name][:1] for name in _SETTLED if name in tunables}
        names = [name for name in tunables if name not in ("group_size", "epilogue_subtile")]
        for values in itertools.product(*({**tunables, **settled}[name] for name in names)):
            chosen = dict(zip(names, values, strict=True))
            slices = {1}
            if "epilogue_subtile" in tunables:
                across = chosen["block_m" if chosen.get("swap_ab") else "block_n"]
                slices = {max(1, across // columns) for columns in SLICE_COLUMNS}
            for count in sorted(slices):
                tile = GemmConfig(kernel=kernel, **chosen, epilogue_subtile=count)
                if why_illegal(tile, problem, gpu) is None:
                    yield tile


def orders(config: GemmConfig) -> Iterator[GemmConfig]:
    """The same tile in every searched tile order."""
    for order in _orders(FAMILIES[config.kernel].tunables):
        yield replace(config, **{"group_size": DEFAULTS["group_size"], **order})


def _orders(tunables: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The fields of each searched tile order."""
    return [
        {"swizzle": swizzle} | ({} if size is None else {"group_size": size})
        for swizzle in tunables["swizzle"]
        for size in (tunables["group_size"] if swizzle in GROUPED_SWIZZLES else (None,))
    ]


def default_config(problem: GemmProblem, gpu: Gpu) -> GemmConfig:
    """A safe pointer configuration: tiles no larger than the problem needs."""
    block_m = min(128, max(16, 1 << (problem.m - 1).bit_length()))
    block_n = min(128, max(32, 1 << (problem.n - 1).bit_length()))
    return GemmConfig(block_m=block_m, block_n=block_n, block_k=32, num_warps=4, num_stages=3)
