"""Options and arguments that several commands share, each parsed in one place."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from autoswizzle.calibration import calibrated
from autoswizzle.cli.failures import note
from autoswizzle.config import GROUPED_SWIZZLES
from autoswizzle.errors import ArgumentError, UnavailableError
from autoswizzle.hardware import CATALOGUE, MIB, Gpu, detect, find_gpu
from autoswizzle.problem import TEXT_FORM, GemmProblem
from autoswizzle.report.plots import SUFFIXES
from autoswizzle.toolchain import triton_version

T = TypeVar("T")

_DIGITS = 18  # of an integer; no count of anything here is longer
DEFAULT_GPU = "H200"  # assumed where there is no GPU and none is named


def parsed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The parser as typer wants it: defaults pass through, an ArgumentError names the option."""

    def parse_text(value: str | T) -> T:
        if not isinstance(value, str):
            return value  # a default
        try:
            return parse(value)
        except ArgumentError as error:
            raise typer.BadParameter(str(error)) from error

    return parse_text


def integer(least: int) -> Callable[[str], int]:
    """Parser of an integer of at least `least`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and not is_extent(text):
            raise ArgumentError(f"must be less than 10^{_DIGITS}, got {text!r}")
        if not is_extent(text) or int(text) < least:
            raise ArgumentError(f"must be an integer of at least {least}, got {text!r}")
        return int(text)

    return parsed(parse)


def _number(text: str) -> float:
    """The number that text spells, NaN where it spells none."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise ArgumentError(f"must be a number above 0, got {text!r}")
    return value


def _percent(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 100:
        raise ArgumentError(f"must be a number from 0 to below 100, got {text!r}")
    return value


positive = parsed(_positive)
percent = parsed(_percent)


def choice(*legal: str) -> Callable[[str], str]:
    """Parser of one of the legal words."""

    def parse(text: str) -> str:
        if text not in legal:
            raise ArgumentError(f"must be one of {', '.join(legal)}, got {text!r}")
        return text

    return parsed(parse)


def extents(form: str, example: str) -> Callable[[str], tuple[int, ...]]:
    """Parser of as many integers joined by x as example has, which form names."""
    count = example.count("x") + 1

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split("x")
        if len(parts) != count or not all(is_extent(part) for part in parts):
            raise ArgumentError(f"must be {form}, like {example}, got {text!r}")
        return tuple(map(int, parts))

    return parsed(parse)


def is_extent(text: str) -> bool:
    """Whether text is an integer, of at most 18 digits."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def storage_url(text: str) -> str:
    """Parser of a study storage's URL."""
    if re.match(r"[a-z][a-z0-9+]*://", text) is None:
        raise ArgumentError(
            f"must be a URL, like sqlite:///study.db or postgresql://host/name, got {text!r}"
        )
    return text


def output_file(text: str) -> Path:
    """Parser of a file to write in a folder that exists."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise ArgumentError(f"must be a file in a folder that exists, got {text!r}")
    return path


def plot_to(drawn: str) -> Any:  # noqa: ANN401  # typer's option
    """The option --plot FILE: a picture in a folder that exists; drawn: what it shows."""

    def parse(text: str) -> Path:
        if Path(text).suffix.lower() not in SUFFIXES:
            raise ArgumentError(f"must end in one of {', '.join(SUFFIXES)}, got {text!r}")
        return output_file(text)

    return typer.Option("--plot", parser=parsed(parse), metavar="FILE", help=drawn)


Problem = Annotated[
    GemmProblem,
    typer.Argument(parser=parsed(GemmProblem.parse), metavar="PROBLEM", help=TEXT_FORM),
]
GpuName = Annotated[
    Gpu | None,
    typer.Option(
        "--gpu",
        parser=parsed(find_gpu),
        metavar="NAME",
        help=f"{', '.join(gpu.name for gpu in CATALOGUE)}. Default: this machine's, "
        f"or {DEFAULT_GPU} where there is none.",
    ),
]
NumSms = Annotated[
    int | None,
    typer.Option("--num-sms", parser=integer(1), metavar="N", help="Override the SM count."),
]
L2Mb = Annotated[
    float | None,
    typer.Option(
        "--l2-mb", parser=positive, metavar="MIB", help="Override the effective L2 capacity."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[
    int,
    typer.Option(
        "--device",
        parser=integer(0),
        metavar="N",
        help="CUDA device, counted among those visible.",
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        "--group-size",
        parser=integer(1),
        metavar="N",
        help="Tiles a group is high (grouped, serpentine) or wide (grouped_n).",
    ),
]


def check_group_size(group_size: int | None, swizzle: str) -> None:
    """Raises ArgumentError for a --group-size that the tile order would not read."""
    if group_size is not None and swizzle not in GROUPED_SWIZZLES:
        raise ArgumentError(
            f"--group-size must go with {', '.join(GROUPED_SWIZZLES)}, got {swizzle}"
        )


def gpu_line(gpu: Gpu) -> str:
    """The GPU and what of it the model uses."""
    return f"{gpu.name} ({gpu.num_sms} SMs, {gpu.l2_effective_bytes / MIB:g} MiB of L2 effective)"


def need_triton() -> None:
    """Raise UnavailableError where triton is not installed."""
    if triton_version() is None:
        raise UnavailableError("this needs triton, which is not installed: pip install triton")


def present_gpu(device: int) -> Gpu:
    """The facts of a CUDA device that torch can use, calibrated ones where there are.

    Raises UnavailableError without one, HardwareError for a number beyond those visible.
    """
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        why = "torch finds none" if built else "torch is built without CUDA"
        raise UnavailableError(f"no CUDA device {device}: {why}")
    return calibrated(detect(device))


def chosen_gpu(named: Gpu | None, num_sms: int | None = None, l2_mb: float | None = None) -> Gpu:
    """The GPU named, else this machine's, else the default with a note; then the overrides."""
    gpu = named
    if gpu is None:
        try:
            gpu = calibrated(detect(0))
        except UnavailableError:
            note(f"no CUDA device here: assuming an {DEFAULT_GPU} (--gpu names another)")
            gpu = find_gpu(DEFAULT_GPU)
    return gpu.with_overrides(num_sms, l2_mb)


Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        parser=parsed(storage_url),
        metavar="URL",
        help="Study storage. Default: SQLite, in the cache.",
    ),
]
