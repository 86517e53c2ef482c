"""Strides and extents in units of 16 bytes: how a compiler knows that copies are aligned."""

from typing import TYPE_CHECKING

from autoswizzle.errors import LaunchError
from autoswizzle.problem import ALIGNMENT

if TYPE_CHECKING:
    from torch import Tensor

UNIT = 8  # 16-bit elements of a 16-byte copy


def stride_in_units(kernel: str, name: str, stored: "Tensor") -> int:
    """Row stride of an operand as it is stored, in units of 16 bytes.

    Raises LaunchError, in the name of the kernel family, for an operand that copies of 16 bytes
    can't follow.
    """
    stride, inner_stride = stored.stride()
    if stored.shape[0] == 1:  # never used
        stride = 0
    if inner_stride != 1 or stride % UNIT or stored.data_ptr() % ALIGNMENT:
        raise LaunchError(
            f"{kernel} needs {name} with unit inner stride and base and row stride multiples of "
            f"{ALIGNMENT} bytes, got strides {tuple(stored.stride())}"
        )
    return stride // UNIT


def in_units(kernel: str, name: str, extent: int, unit: int) -> int:
    """The extent over unit, which must divide it; raises LaunchError otherwise."""
    if extent % unit:
        raise LaunchError(f"{kernel} needs {name} to be a multiple of {unit}, got {extent}")
    return extent // unit
