"""Options that spell a configuration."""

import json
from contextlib import suppress
from dataclasses import fields
from typing import Annotated, Any

import typer

from autoswizzle.cli.options import check_group_size, choice, extents, integer, parsed
from autoswizzle.config import KERNELS, SWIZZLES, GemmConfig
from autoswizzle.errors import ArgumentError, ConfigError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.space import default_config

_DEFAULTS = {field.name: field.default for field in fields(GemmConfig)}


def _assignment(text: str) -> tuple[str, Any]:
    """A field of a configuration and its value: a bare word, or in JSON where it is no text."""
    name, equals, word = text.partition("=")
    if not (name and equals and word):
        raise ArgumentError(f"must be FIELD=VALUE, like split_k=2, got {text!r}")
    value: Any = word
    if not isinstance(_DEFAULTS.get(name), str):
        with suppress(ValueError, RecursionError):  # then the word itself is the wrong value
            value = json.loads(word)
    GemmConfig.from_dict({name: value})
    return name, value


Kernel = Annotated[
    str | None,
    typer.Option(
        "--kernel",
        parser=choice(*(kernel for kernel in KERNELS if kernel != "torch")),
        metavar="NAME",
        help="Kernel family. Default: pointer.",
    ),
]
Block = Annotated[
    Any,
    typer.Option(
        "--block",
        parser=extents("BLOCK_MxBLOCK_NxBLOCK_K", "128x256x64"),
        metavar="MxNxK",
        help="Elements of a tile and a k step.",
    ),
]
SwizzleName = Annotated[
    str | None,
    typer.Option("--swizzle", parser=choice(*SWIZZLES), metavar="ORDER", help=", ".join(SWIZZLES)),
]
Warps = Annotated[int | None, typer.Option("--warps", parser=integer(1), metavar="N")]
Stages = Annotated[
    int | None,
    typer.Option("--stages", parser=integer(1), metavar="N", help="k steps in flight."),
]
Persistent = Annotated[
    bool, typer.Option("--persistent", help="Programs loop over tiles instead of one program each.")
]
Set = Annotated[
    list[Any] | None,
    typer.Option(
        "--set",
        parser=parsed(_assignment),
        metavar="FIELD=VALUE",
        help="Any other field of a configuration; repeatable.",
    ),
]


def chosen_config(
    problem: GemmProblem,
    gpu: Gpu,
    *,
    block: tuple[int, ...] | None,
    assignments: list[tuple[str, Any]],
    group_size: int | None = None,
    **named: str | int | bool | None,
) -> GemmConfig:
    """The problem's default configuration with the fields the caller stated, each once.

    Raises ArgumentError, ConfigError.
    """
    changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if block is not None:
        changes |= dict(zip(("block_m", "block_n", "block_k"), block, strict=True))
    if group_size is not None:
        changes["group_size"] = group_size
    for name, value in assignments:
        if name in changes:
            raise ArgumentError(f"{name} must be given once, got --set {name}={value} too")
        changes[name] = value
    config = GemmConfig.from_dict({**default_config(problem, gpu).to_dict(), **changes})
    check_group_size(group_size, config.swizzle)
    if config.kernel == "torch":
        raise ConfigError("kernel must be one of ours, which have a tile order, got 'torch'")
    return config
