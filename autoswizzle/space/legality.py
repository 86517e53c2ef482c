"""The one statement of legality."""

from dataclasses import fields

from autoswizzle.config import GROUPED_SWIZZLES, TORCH, GemmConfig
from autoswizzle.hardware import Gpu
from autoswizzle.problem import INT32_MAX, GemmProblem
from autoswizzle.space.families import FAMILIES
from autoswizzle.space.geometry import grid

MAX_GROUP_SIZE = 1024
DEFAULTS = {item.name: item.default for item in fields(GemmConfig)}
_UNUSED = {
    kernel: [name for name in DEFAULTS if name != "kernel" and name not in family.tunables]
    for kernel, family in FAMILIES.items()
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
    unable = family.why_unable(problem, gpu)
    if unable is not None:
        return f"{config.kernel} {unable}"
    if problem.out_dtype != problem.dtype and not problem.dtype.startswith("fp8"):
        return f"out_dtype must be {problem.dtype}, got {problem.out_dtype}"
    for name in _UNUSED[config.kernel]:
        if getattr(config, name) != DEFAULTS[name]:
            return f"{config.kernel} does not use {name}, got {getattr(config, name)!r}"
    if config.swizzle not in GROUPED_SWIZZLES and config.group_size != DEFAULTS["group_size"]:
        return f"swizzle {config.swizzle} does not use group_size, got {config.group_size}"
    if config.group_size > MAX_GROUP_SIZE:
        return f"group_size must be in 1..{MAX_GROUP_SIZE}, got {config.group_size}"
    grid_m, grid_n = grid(config, problem)
    if grid_m * grid_n > INT32_MAX:  # grid axis x ends there, too
        return f"the grid must have at most {INT32_MAX} tiles, got {grid_m * grid_n}"
    reasons = (rule(config, problem, gpu) for rule in family.rules)
    return next(filter(None, reasons), None) or _uncountable(config, problem)


def _uncountable(config: GemmConfig, problem: GemmProblem) -> str | None:
    """The device counts the blocks of an extent as (extent + block - 1) / block, in int32."""
    for name, blocks in (("m", config.cluster_m), ("n", config.cluster_n), ("k", 1)):
        extent = getattr(problem, name)
        most = INT32_MAX + 1 - blocks * getattr(config, f"block_{name}")
        if extent > most:
            return f"{name} must be at most {most} with these blocks, got {extent}"
    return None
