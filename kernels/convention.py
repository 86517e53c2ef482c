"""The C function behind triton's launch, and its argument list.

That function is private to triton and changes between versions: each version known here has its
own few lines.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from autoswizzle.kernels.family import SCRATCH

# the C function, and its arguments before the kernel's own
Convention: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]


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
        if name in SCRATCH and value is not None:
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


def _convention_3_6(kernel: Any, programs: int) -> Convention:  # noqa: ANN401
    launcher = kernel.run
    header = (
        programs, 1, 1, None, kernel.function,
        launcher.launch_cooperative_grid, launcher.launch_pdl, None, None,
        kernel.packed_metadata, None, None, None,
    )  # fmt: skip
    return _c_function(launcher), header


def _convention_3_9(kernel: Any, programs: int) -> Convention:  # noqa: ANN401
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


CONVENTIONS: Mapping[tuple[int, int], Callable[[Any, int], Convention]] = {
    (3, 6): _convention_3_6,
    (3, 9): _convention_3_9,
}
