"""A launch prepared once and repeated at little host cost.

Triton's JIT launch binds, specialises and encodes tensor maps anew at every call, for tens of
microseconds. A direct launch keeps the compiled kernel, the argument list and the tensor maps, and
calls the C function behind them. That function is private to triton and changes between versions:
each version known here has its own few lines, any other takes the plain launch.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.kernels.family import Scratch, family
from autoswizzle.kernels.launch import (
    check_extents,
    current_device,
    interpreted,
    load,
    programs_of,
    run,
)
from autoswizzle.problem import ALIGNMENT, GemmProblem
from autoswizzle.toolchain import triton_version

MAX_TENSOR_MAPS = 4096  # kept by one launcher, 200 bytes each; then it starts over

STREAM = 3  # where the C function takes the stream

# the C function, and its arguments before the kernel's own
_Convention: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


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
    call = family(config.kernel).call(config, problem, a, b, out)
    plain = PlainLauncher(config, problem)
    convention = _CONVENTIONS.get(triton_version() or (0, 0))
    if interpreted(call) or convention is None:
        return plain
    with current_device(a.device):
        kernel, resources = load(call)
        programs = programs_of(call, resources, a.device)
    if kernel.metadata.global_scratch_size or kernel.metadata.profile_scratch_size:
        return plain  # such a kernel needs memory from triton's allocator at every launch
    low_bits = [
        ALIGNMENT - 1 if operand.data_ptr() % ALIGNMENT == 0 else 0 for operand in (a, b, out)
    ]
    function, header = convention(kernel, programs)
    arguments = call.arguments(torch.device("meta"))
    return DirectLauncher(
        plain=plain,
        device=a.device.index,
        low_bits=(low_bits[0], low_bits[1], low_bits[2]),
        function=function,
        arguments=prepare(header, arguments, (a, b, out), kernel.metadata.tensordesc_meta or ()),
        scratch=call.scratch,
    )


@dataclass(frozen=True, slots=True)
class PlainLauncher:
    """A launch by triton's own JIT."""

    config: GemmConfig
    problem: GemmProblem
    direct: bool = False

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """See Launcher."""
        run(self.config, self.problem, a, b, out)

    def start(self, at_a: int, at_b: int, at_out: int) -> None:
        """See Launcher."""
        raise NotImplementedError("triton's own launch takes tensors")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The C function's argument list, with holes that each launch fills: the stream's and these.

    pointers: (position, operand) of the addresses of operands 0, 1, 2: a, b, out. maps: (position,
    operand, encoder from an address) of the tensor maps. scratch: (position, name) of a launch's
    own memory.
    """

    values: tuple[Any, ...]
    pointers: tuple[tuple[int, int], ...]
    maps: tuple[tuple[int, int, Callable[[int], Any]], ...]
    scratch: tuple[tuple[int, str], ...]


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
            raise LaunchError(f"{self.plain.config}: {error}") from error

    def _encoded(self, place: tuple[int, int], encode: Callable[[int], Any]) -> Any:  # noqa: ANN401
        if len(self.tensor_maps) >= MAX_TENSOR_MAPS:
            self.tensor_maps.clear()
        found = self.tensor_maps[place] = encode(place[1])
        return found


def prepare(
    header: Sequence[Any],
    arguments: Mapping[str, Any],
    operands: Sequence[Tensor],
    map_facts: Sequence[Any],
) -> Arguments:
    """The argument list of a call on these operands; header: what every kernel's begins with.

    map_facts: what the compiler says of each tensor map, in order. The C function takes a tensor
    map's shape and strides after it, and skips constexprs.
    """
    values = [*header]
    pointers: list[tuple[int, int]] = []
    maps: list[tuple[int, int, Callable[[int], Any]]] = []
    scratch: list[tuple[int, str]] = []
    facts = iter(map_facts)

    def index(tensor: Tensor) -> int:
        return next(place for place, operand in enumerate(operands) if operand is tensor)

    for name, value in arguments.items():
        if name in Scratch.__slots__ and value is not None:
            scratch.append((len(values), name))
            values.append(None)
        elif isinstance(value, Tensor):
            pointers.append((len(values), index(value)))
            values.append(None)
        elif hasattr(value, "block_shape"):
            maps.append((len(values), index(value.base), _encoder(value, next(facts))))
            values += [None, *value.shape, *value.strides]
        else:
            values.append(value)
    return Arguments(tuple(values), tuple(pointers), tuple(maps), tuple(scratch))


@dataclass(frozen=True, slots=True)
class _Address:
    """Stands in for a descriptor's tensor: all that encoding reads of it is its address."""

    address: int

    def data_ptr(self) -> int:
        return self.address


def _encoder(descriptor: Any, facts: Any) -> Callable[[int], Any]:  # noqa: ANN401
    """From an address to the tensor map of a tensor like the descriptor's that begins there."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    template = copy.copy(descriptor)
    template.base = None  # the operand itself is not kept alive
    unused = [None] * (len(inspect.signature(make_tensordesc_arg).parameters) - 2)  # 3.9 has one

    def encode(address: int) -> Any:  # noqa: ANN401
        moved = copy.copy(template)
        moved.base = _Address(address)
        return make_tensordesc_arg(moved, facts, *unused)[0]

    return encode


def _c_function(launcher: Any) -> Callable[..., None]:  # noqa: ANN401
    """The C function of a CudaLauncher, which wraps it where a kernel takes descriptors."""
    launch: Callable[..., None] = launcher.launch
    if inspect.isfunction(launch):
        launch = inspect.getclosurevars(launch).nonlocals["launcher"]
    return launch


def _convention_3_6(kernel: Any, programs: int) -> _Convention:  # noqa: ANN401
    launcher = kernel.run
    header = (
        programs, 1, 1, None, kernel.function,
        launcher.launch_cooperative_grid, launcher.launch_pdl, None, None,
        kernel.packed_metadata, None, None, None,
    )  # fmt: skip
    return _c_function(launcher), header


def _convention_3_9(kernel: Any, programs: int) -> _Convention:  # noqa: ANN401
    launcher = kernel.run
    launch = _c_function(launcher)
    header = (
        programs, 1, 1, None, kernel.function,
        launcher.launch_cooperative_grid, launcher.launch_pdl, kernel.packed_metadata,
        None, None, None, None, None, launcher.arg_annotations, launcher.kernel_signature,
    )  # fmt: skip
    length = len(header)

    def function(*values: Any) -> None:  # noqa: ANN401
        launch(*values[:length], values[length:])

    return function, header


_CONVENTIONS: Mapping[tuple[int, int], Callable[[Any, int], _Convention]] = {
    (3, 6): _convention_3_6,
    (3, 9): _convention_3_9,
}
