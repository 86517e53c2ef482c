"""XOR swizzles of shared-memory offsets.

Source: CuTe's Swizzle<B, M, S> (CUTLASS include/cute/swizzle.hpp); the 32, 64 and 128 byte modes
are those of CUDA tensor maps (CUDA C++ Programming Guide, "The Swizzle Modes").
"""

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from autoswizzle.errors import ArgumentError

Ints = NDArray[np.int64]
MAX_BIT = 62  # highest bit of a non-negative int64


@dataclass(frozen=True, slots=True)
class Swizzle:
    """offset -> offset ^ ((offset & yyy) >> shift), a self-inverse bijection on offsets >= 0.

    yyy: `bits` bits from base + max(0, shift) up; they are XORed into the `bits` bits that lie
    `shift` lower (a negative shift: higher). base: bits left alone below both. |shift| >= bits
    keeps the two fields apart. Raises ArgumentError.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        for name in ("bits", "base", "shift"):
            value = getattr(self, name)
            if type(value) is not int:
                raise ArgumentError(f"{name} must be an integer, got {value!r}")
        for name in ("bits", "base"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name} must be at least 0, got {getattr(self, name)}")
        if abs(self.shift) < self.bits:
            raise ArgumentError(f"|shift| must be at least bits = {self.bits}, got {self.shift}")
        if self.base + abs(self.shift) + self.bits > MAX_BIT:
            raise ArgumentError(
                f"base + |shift| + bits must be at most {MAX_BIT}, "
                f"got {self.base + abs(self.shift) + self.bits}"
            )

    @property
    def source_mask(self) -> int:
        """The bits that are read (yyy)."""
        return ((1 << self.bits) - 1) << (self.base + max(0, self.shift))

    @property
    def target_mask(self) -> int:
        """The bits that are changed."""
        return ((1 << self.bits) - 1) << (self.base + max(0, -self.shift))

    @overload
    def __call__(self, offset: int) -> int: ...
    @overload
    def __call__(self, offset: NDArray[Any]) -> Ints: ...

    def __call__(self, offset: int | NDArray[Any]) -> int | Ints:
        """The swizzled offset, or int64 array of offsets; offsets must be integers >= 0."""
        if isinstance(offset, np.ndarray):
            offsets = integers("offset", offset)
            read = offsets & self.source_mask
            return offsets ^ (read >> self.shift if self.shift >= 0 else read << -self.shift)
        value = integer("offset", offset, least=0)
        read_bits = value & self.source_mask
        return value ^ (read_bits >> self.shift if self.shift >= 0 else read_bits << -self.shift)

    def __str__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"


NO_SWIZZLE = Swizzle(0, 4, 3)
SWIZZLE_32B = Swizzle(1, 4, 3)  # on byte offsets: 16-byte atoms, 8 atoms a row of 128 bytes
SWIZZLE_64B = Swizzle(2, 4, 3)
SWIZZLE_128B = Swizzle(3, 4, 3)


def integer(name: str, value: object, least: int) -> int:
    """Value as an int of `least` to 2^62; raises ArgumentError naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{name} must be an integer of at least {least}, got {value!r}")
    if value > 1 << MAX_BIT:
        raise ArgumentError(f"{name} must be at most 2^{MAX_BIT}, got {value!r}")
    return int(value)


def integers(name: str, values: object, most: int = 1 << MAX_BIT) -> Ints:
    """Values as an int64 array of numbers in 0..most; raises ArgumentError naming them."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ArgumentError(f"{name} must be an array, got a ragged sequence") from None
    if array.size and array.dtype.kind not in "iu":
        raise ArgumentError(f"{name} must hold integers, got {array.dtype}")
    if array.size and array.min() < 0:
        raise ArgumentError(f"{name} must be at least 0, got {array.min()}")
    if array.size and array.max() > most:
        raise ArgumentError(f"{name} must be at most {most}, got {array.max()}")
    return array.astype(np.int64)


def check_itemsize(itemsize: object) -> None:
    """Raises ArgumentError unless itemsize is the bytes of an element."""
    if type(itemsize) is not int or itemsize not in (1, 2, 4, 8):
        raise ArgumentError(f"itemsize must be 1, 2, 4 or 8, got {itemsize!r}")
