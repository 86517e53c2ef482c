"""A launch prepared once and repeated at little host cost.

Triton's JIT launch binds, specialises and encodes tensor maps anew at every call, for tens of
microseconds. A direct launch keeps the compiled kernel, the argument list and the tensor maps, and
calls the C function behind them (convention.py). A version of triton that is not known there takes
the plain launch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import detect
from autoswizzle.kernels.convention import CONVENTIONS, Arguments, prepare
from autoswizzle.kernels.family import Call, Scratch, family
from autoswizzle.kernels.launch import (
    check_extents,
    copy,
    current_device,
    interpreted,
    load,
    programs_of,
    run,
    without_padding,
)
from autoswizzle.kernels.padding import copy_call, multiply_padded
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.toolchain import triton_version

MAX_TENSOR_MAPS = 4096  # kept by one launcher, 200 bytes each; then it starts over

STREAM = 3  # where the C function takes the stream


class Launcher(Protocol):
    """One GEMM launch, repeatable on operands of the same device, dtypes, extents and strides."""

    @property
    def direct(self) -> bool:
        """Whether calls go past triton's JIT, so that start may be called."""
        ...

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """out[m, n] = a[m, k] @ b[k, n] on the bound device's current stream.

        The operands are not checked; only the alignment of their bases may differ. Raises as run.
        """
        ...

    def start(self, at_a: int, at_b: int, at_out: int) -> None:
        """The same of operands at these addresses, where the bound device is the current one.

        The addresses must be multiples of 16, or as aligned as the bound operands' are.
        """
        ...


def bind(config: GemmConfig, problem: GemmProblem, a: Tensor, b: Tensor, out: Tensor) -> Launcher:
    """A launcher of config for operands like these: compiled and loaded, not yet launched.

    Raises as run does.
    """
    check_extents(problem, a, b, out)
    if config.padded:
        padded = PaddedLauncher(config, problem)
        padded.load(a, b, out)
        return padded
    # Tensors of their own: arguments are told apart by identity, and a may be b in this call alone.
    a, b, out = a.detach(), b.detach(), out.detach()
    call = family(config.kernel).call(config, problem, a, b, out)
    return _bind(call, (a, b, out), PlainLauncher(partial(run, config, problem), str(config)))


def _bind(call: Call, operands: tuple[Tensor, Tensor, Tensor], plain: "PlainLauncher") -> Launcher:
    """A launcher of call, or plain where triton's C function is not known or needs more."""
    convention = CONVENTIONS.get(triton_version() or (0, 0))
    if interpreted(call) or convention is None:
        return plain
    device = operands[0].device
    with current_device(device):
        call = call.overlapping(detect(device.index).capability)
        kernel, resources = load(call)
        programs = programs_of(call, resources, device)
    if kernel.metadata.global_scratch_size or kernel.metadata.profile_scratch_size:
        return plain  # such a kernel needs memory from triton's allocator at every launch
    low_bits = [ALIGNMENT - 1 if operand.data_ptr() % ALIGNMENT == 0 else 0 for operand in operands]
    function, header = convention(kernel, programs)
    arguments = call.arguments(torch.device("meta"))
    return DirectLauncher(
        plain=plain,
        device=device.index,
        low_bits=(low_bits[0], low_bits[1], low_bits[2]),
        function=function,
        arguments=prepare(header, arguments, operands, kernel.metadata.tensordesc_meta or ()),
        scratch=call.scratch,
    )


@dataclass(frozen=True, slots=True)
class PlainLauncher:
    """A launch by triton's own JIT: launch(a, b, out); name: what an error calls it."""

    launch: Callable[[Tensor, Tensor, Tensor], None]
    name: str
    direct: bool = False

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """See Launcher."""
        self.launch(a, b, out)

    def start(self, at_a: int, at_b: int, at_out: int) -> None:
        """See Launcher."""
        raise NotImplementedError("triton's own launch takes tensors")


@dataclass(frozen=True, slots=True)
class PaddedLauncher:
    """Copies to padded rows and back around a launch; bound: the launchers of both, by strides."""

    config: GemmConfig
    problem: GemmProblem
    bound: dict[tuple[object, ...], Launcher] = field(default_factory=dict)
    direct: bool = False

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """See Launcher."""
        multiply_padded(self.problem.layout, (a, b, out), self._multiply, self._copy)

    def start(self, at_a: int, at_b: int, at_out: int) -> None:
        """See Launcher."""
        raise NotImplementedError("copies to padded rows take tensors")

    def load(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Compile and load what a call with operands like these launches."""
        multiply_padded(self.problem.layout, (a, b, out), self._multiplier, self._copier)

    def _multiply(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        self._multiplier(a, b, out)(a, b, out)

    def _copy(self, source: Tensor, target: Tensor) -> None:
        self._copier(source, target)(source, source, target)

    def _multiplier(self, a: Tensor, b: Tensor, out: Tensor) -> Launcher:
        key = a.stride(), b.stride(), out.stride()
        if key not in self.bound:
            self.bound[key] = bind(*without_padding(self.config, self.problem), a, b, out)
        return self.bound[key]

    def _copier(self, source: Tensor, target: Tensor) -> Launcher:
        """Of a matrix like source: it stands for both operands of a launcher."""
        # Of the bases what triton compiles for, so that a plan's calls, which have it in common,
        # load nothing that its first has not: a capture could not.
        aligned = tuple(operand.data_ptr() % ALIGNMENT == 0 for operand in (source, target))
        key = source.shape, source.stride(), target.stride(), aligned
        if key not in self.bound:
            plain = PlainLauncher(lambda source, _, target: copy(source, target), "a copy")
            self.bound[key] = _bind(copy_call(source, target), (source, source, target), plain)
        return self.bound[key]


@dataclass(frozen=True, slots=True)
class DirectLauncher:
    """A launch by the C function, from a prepared argument list.

    low_bits: of each operand's address, those the compiled kernel takes to be zero.
    """

    plain: PlainLauncher
    device: int
    low_bits: tuple[int, int, int]
    function: Callable[..., None]
    arguments: Arguments
    scratch: Scratch
    tensor_maps: dict[tuple[int, int], Any] = field(default_factory=dict)
    direct: bool = True

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """See Launcher."""
        addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
        low_a, low_b, low_out = self.low_bits
        if addresses[0] & low_a or addresses[1] & low_b or addresses[2] & low_out:
            self.plain(a, b, out)
        elif torch._C._cuda_getDevice() == self.device:
            self.start(*addresses)
        else:
            with torch.cuda.device(self.device):
                self.start(*addresses)

    def start(self, at_a: int, at_b: int, at_out: int) -> None:
        """See Launcher."""
        addresses = at_a, at_b, at_out
        arguments = self.arguments
        values = [*arguments.values]
        values[STREAM] = torch._C._cuda_getCurrentRawStream(self.device)
        for position, operand in arguments.pointers:
            values[position] = addresses[operand]
        for position, operand, encode in arguments.maps:
            place = position, addresses[operand]
            values[position] = self.tensor_maps.get(place) or self._encoded(place, encode)
        if arguments.scratch:
            allocated = self.scratch.allocate(torch.device("cuda", self.device))
            for position, name in arguments.scratch:
                values[position] = allocated[name]
        try:
            self.function(*values)
        except RuntimeError as error:  # what triton's launcher raises for a driver error
            raise LaunchError(f"{self.plain.name}: {error}") from error

    def _encoded(self, place: tuple[int, int], encode: Callable[[int], Any]) -> Any:  # noqa: ANN401
        if len(self.tensor_maps) >= MAX_TENSOR_MAPS:
            self.tensor_maps.clear()
        found = self.tensor_maps[place] = encode(place[1])
        return found
