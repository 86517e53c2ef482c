"""The search space: the configurations of a problem on a GPU, and why others are illegal."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from autoswizzle.config import (
    GROUPED_SWIZZLES,
    SCHEDULINGS,
    SWIZZLES,
    TORCH,
    WARP_SPECIALIZE,
    GemmConfig,
)
from autoswizzle.errors import ArgumentError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.smem import warp_grid
from autoswizzle.toolchain import triton_version

GROUP_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
MAX_GROUP_SIZE = 1024
MAX_TILES = 2**31 - 1  # of a launch: the device counts in int32, and grid axis x ends there
MAX_REGISTERS = 255  # a thread can have
SLICE_COLUMNS = (64, 32)  # of an output slice: 128 and 64 bytes of 16-bit elements
_SETTLED = ("swizzle", "scheduling", "flatten")  # what does not make another tile
MAX_ACCUMULATORS = 256  # fp32 accumulators a thread can hold (255 registers a thread)

MAX_SPLIT_K = 32  # partial sums of a tile that its last program adds
MAX_SPLIT_ADDED = 64  # of a slice of the tile, beside their addresses: 128 spills, ptxas 12.8
MAX_SPLIT_WAVES = 8  # work items an SM, when k is split: a larger grid needs no split

_DEFAULTS = {item.name: item.default for item in fields(GemmConfig)}


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel family: where it runs and which fields of GemmConfig it uses.

    tunables: the values a search tries, by field; legal values may be wider (rules).
    rules: each returns why a configuration is illegal, or None.
    """

    capabilities: tuple[int, ...]
    dtypes: tuple[str, ...]
    tunables: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rules: tuple[Callable[[GemmConfig, GemmProblem, Gpu], str | None], ...] = ()


def _power_of_two_blocks(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    for name in ("block_m", "block_n", "block_k"):
        value = getattr(config, name)
        if not 16 <= value <= 256 or value & (value - 1):
            return f"{name} must be a power of two in 16..256, got {value}"
    if config.num_warps not in (1, 2, 4, 8, 16):
        return f"num_warps must be 1, 2, 4, 8 or 16, got {config.num_warps}"
    return None


def _stages(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if config.num_stages > 8:
        return f"num_stages must be in 1..8, got {config.num_stages}"
    return None


def _accumulators(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    held = config.block_m * config.block_n // (32 * config.num_warps)
    if held > MAX_ACCUMULATORS:
        return (
            f"block_m x block_n must need <= {MAX_ACCUMULATORS} accumulators a thread, got {held}"
        )
    return None


def _not_batched(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    return f"batch must be 1, got {problem.batch}" if problem.batch != 1 else None


def _scheduling(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if config.scheduling == "dynamic" and not config.persistent:
        return "scheduling must be static without persistent, got dynamic"
    return None


def _aligned(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if not problem.aligned:
        return f"{config.kernel} needs operands aligned to {ALIGNMENT} bytes, got {problem}"
    return None


def _whole_pieces(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """A TMA store that ends beyond n still writes up to the next 16 bytes (triton issue 11583)."""
    unit = ALIGNMENT // problem.out_itemsize
    if problem.n % unit:
        return f"{config.kernel} needs n to be a multiple of {unit}, got {problem.n}"
    return None


def _persistent(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if not config.persistent:
        return f"{config.kernel} must be persistent, got persistent=False"
    return None


def _tma_loops(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if config.flatten and config.scheduling == "dynamic":
        return "flatten must be false with dynamic scheduling (no loop over a range), got true"
    widths = tuple(width for width in (1, 2, 4) if config.block_n // width >= 16)
    if config.epilogue_subtile not in widths:
        return (
            f"epilogue_subtile must be one of {', '.join(map(str, widths))} for block_n"
            f" {config.block_n}, got {config.epilogue_subtile}"
        )
    return None


def _toolchain(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Gluon with warp specialisation on Hopper came with triton 3.6."""
    version = triton_version()
    if version is not None and version < (3, 6):
        return f"{config.kernel} needs triton >= 3.6, got {version[0]}.{version[1]}"
    return None


def _wgmma_operands(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """The hardware reads a 16-bit operand from shared memory either way, a 32-bit one along k."""
    if problem.dtype == "fp32" and problem.precision != "tf32":
        return f"wgmma needs precision tf32 for fp32, got {problem.precision}"
    if problem.dtype == "fp32" and problem.layout != "nt":
        return f"wgmma needs layout nt for tf32, got {problem.layout}"
    if config.block_k * problem.itemsize not in (128, 256):
        wanted = f"{128 // problem.itemsize} or {256 // problem.itemsize}"
        return f"wgmma needs block_k {wanted} for {problem.dtype}, got {config.block_k}"
    return None


def _wgmma_tile(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """block_n 192 is made of 128 and 64 columns; slices of it must not straddle the two."""
    if config.block_m not in (64, 128, 256):
        return f"wgmma needs block_m 64, 128 or 256, got {config.block_m}"
    if config.block_n not in (32, 64, 128, 192, 256):
        return f"wgmma needs block_n 32, 64, 128, 192 or 256, got {config.block_n}"
    slices = (3, 6) if config.block_n == 192 else (1, 2, 4, 8)
    if config.epilogue_subtile not in slices or config.block_n // config.epilogue_subtile < 16:
        return (
            f"wgmma needs epilogue_subtile in {slices} of >= 16 columns for block_n "
            f"{config.block_n}, got {config.epilogue_subtile}"
        )
    if not 2 <= config.num_stages <= 8:
        return f"wgmma needs num_stages in 2..8, got {config.num_stages}"
    return None


def _wgmma_split(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if config.split_k == 1:
        return None
    if config.warp_specialize != "cooperative":
        return f"wgmma needs warp_specialize cooperative to split k, got {config.warp_specialize}"
    steps = -(-problem.k // config.block_k)
    if config.split_k > min(steps, MAX_SPLIT_K):
        return f"split_k must be in 1..{min(steps, MAX_SPLIT_K)}, got {config.split_k}"
    threads = 8 * 32  # of the consumers, one of 8 warps or two of 4
    added = config.block_m * config.block_n // config.epilogue_subtile // threads
    if added > MAX_SPLIT_ADDED:
        return f"a thread must add <= {MAX_SPLIT_ADDED} partial sums at once, got {added}"
    grid_m, grid_n = grid(config, problem)
    items, most = grid_m * grid_n * config.split_k, MAX_SPLIT_WAVES * gpu.num_sms
    if items > most:
        return f"tiles x split_k must be <= {most}, as their partial sums are kept, got {items}"
    return None


def _wgmma_warps(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """num_warps are those of one consumer: two halves of a tile, two tiles, or one of a tile."""
    if config.num_warps not in (4, 8):
        return f"wgmma needs num_warps 4 or 8, got {config.num_warps}"
    if config.warp_specialize == "pingpong" and config.num_warps != 4:
        return f"wgmma needs num_warps 4 for pingpong, got {config.num_warps}"
    halved = config.warp_specialize == "cooperative" and config.num_warps == 4
    rows = config.block_m // (2 if halved else 1)
    if rows < 16 * config.num_warps:
        return (
            f"wgmma needs 64 rows for every 4 warps, got {rows} rows for {config.num_warps} warps"
        )
    held = rows * config.block_n // (32 * config.num_warps)
    limit = 128 if config.warp_specialize == "none" else 192  # without spills, ptxas 12.8
    if held > limit:
        return f"wgmma needs <= {limit} accumulators a thread, got {held}"
    return None


def _mma_sync_operands(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Copies are of 16 bytes along contiguous dimensions, without a remainder."""
    names = {"n"} | ({"k"} if problem.layout != "tn" else set())
    names |= {"m"} if problem.layout[0] == "t" else set()
    unit = ALIGNMENT // problem.itemsize
    for name in sorted(names):
        if getattr(problem, name) % unit:
            return f"mma_sync needs {name} to be a multiple of {unit}, got {getattr(problem, name)}"
    return None


def _mma_sync_tile(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    if not 2 <= config.num_stages <= 8:
        return f"mma_sync needs num_stages in 2..8, got {config.num_stages}"
    if config.max_registers > MAX_REGISTERS:
        return f"max_registers must be in 0..{MAX_REGISTERS}, got {config.max_registers}"
    try:
        warp_grid(config.block_m, config.block_n, config.num_warps)
    except ArgumentError as error:
        return str(error)
    return None


_TILE_RULES = (_power_of_two_blocks, _stages, _accumulators, _not_batched, _scheduling)

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
        },
        rules=_TILE_RULES,
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
        },
        rules=(*_TILE_RULES, _aligned, _whole_pieces, _persistent, _tma_loops),
    ),
    "wgmma": Family(
        capabilities=(90,),
        dtypes=("fp16", "bf16", "fp32"),
        tunables={
            "block_m": (64, 128, 256),
            "block_n": (64, 128, 192, 256),
            "block_k": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (3, 4, 5, 6),
            "swizzle": SWIZZLES,
            "group_size": GROUP_SIZES,
            "persistent": (True,),
            "scheduling": SCHEDULINGS,
            "epilogue_subtile": (1, 2, 3, 4, 6),
            "split_k": (1, 2, 3, 4, 6, 8),
            "warp_specialize": WARP_SPECIALIZE,
        },
        rules=(
            _toolchain,
            _aligned,
            _whole_pieces,
            _persistent,
            _not_batched,
            _wgmma_operands,
            _wgmma_tile,
            _wgmma_warps,
            _wgmma_split,
        ),
    ),
    "mma_sync": Family(  # few values: it shows layouts, and wgmma or pointer is faster
        capabilities=(80, 86, 89, 90, 100, 120),
        dtypes=("fp16", "bf16"),
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
        rules=(_toolchain, _aligned, *_TILE_RULES, _mma_sync_operands, _mma_sync_tile),
    ),
}


def why_illegal(config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> str | None:
    """Why config can't run problem on gpu, None when it can. The one statement of legality.

    Registers and shared memory are judged from the compiled kernel instead (simulator.resources).
    """
    if config.kernel == "torch":
        return None if config == TORCH else "a torch decision must have no tunables"
    family = FAMILIES.get(config.kernel)
    if family is None:
        return f"kernel must be one of {', '.join(FAMILIES)}, got {config.kernel!r}"
    if gpu.capability not in family.capabilities:
        needed = ", ".join(map(str, family.capabilities))
        return f"{config.kernel} needs compute capability in {needed}, got {gpu.capability}"
    if problem.dtype not in family.dtypes:
        return f"{config.kernel} needs dtype in {', '.join(family.dtypes)}, got {problem.dtype}"
    if problem.out_dtype != problem.dtype and not problem.dtype.startswith("fp8"):
        return f"out_dtype must be {problem.dtype}, got {problem.out_dtype}"
    for name, default in _DEFAULTS.items():
        used = name == "kernel" or name in family.tunables
        if not used and getattr(config, name) != default:
            return f"{config.kernel} does not use {name}, got {getattr(config, name)!r}"
    if config.swizzle not in GROUPED_SWIZZLES and config.group_size != _DEFAULTS["group_size"]:
        return f"swizzle {config.swizzle} does not use group_size, got {config.group_size}"
    if config.group_size > MAX_GROUP_SIZE:
        return f"group_size must be in 1..{MAX_GROUP_SIZE}, got {config.group_size}"
    grid_m, grid_n = grid(config, problem)
    if grid_m * grid_n > MAX_TILES:
        return f"the grid must have at most {MAX_TILES} tiles, got {grid_m * grid_n}"
    return next(filter(None, (rule(config, problem, gpu) for rule in family.rules)), None)


def grid(config: GemmConfig, problem: GemmProblem) -> tuple[int, int]:
    """Tiles along m and along n."""
    return -(-problem.m // config.block_m), -(-problem.n // config.block_n)


def branches(problem: GemmProblem, gpu: Gpu) -> dict[str, Mapping[str, tuple[Any, ...]]]:
    """The conditional space: for each family that can run problem on gpu, its tunables and values.

    group_size is in play only for the swizzles of config.GROUPED_SWIZZLES.
    """
    return {
        kernel: family.tunables
        for kernel, family in FAMILIES.items()
        if gpu.capability in family.capabilities and problem.dtype in family.dtypes
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
            config = GemmConfig(kernel=kernel, **dict(zip(names, values, strict=True)))
            slices = {1}
            if "epilogue_subtile" in tunables:
                slices = {max(1, config.block_n // columns) for columns in SLICE_COLUMNS}
            for count in sorted(slices):
                tile = replace(config, epilogue_subtile=count)
                if why_illegal(tile, problem, gpu) is None:
                    yield tile


def orders(config: GemmConfig) -> Iterator[GemmConfig]:
    """The same tile in every searched tile order."""
    for order in _orders(FAMILIES[config.kernel].tunables):
        yield replace(config, **{"group_size": _DEFAULTS["group_size"], **order})


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
