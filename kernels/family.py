"""What every kernel family provides, and where each family's module is.

A family's module names itself in MODULES and defines one function,

    call(config, problem, a, b, out) -> Call

which turns a configuration and operands into the arguments of one launch. It does not touch a GPU:
the operands may be CPU or meta tensors when the kernel is only compiled. a is (m, k), b is (k, n),
out is (m, n), of any strides; a family that needs more of them raises LaunchError. The launcher and
the offline compiler know nothing else of a family.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, cast

from autoswizzle.config import GemmConfig
from autoswizzle.errors import ConfigError
from autoswizzle.problem import GemmProblem

if TYPE_CHECKING:
    from torch import Tensor, device

SCRATCH = ("counter", "partials", "flags", "ticket")  # parameters that Scratch.allocate fills
_LEAST_TICKET = 2**62  # always 64 bits wide, as the kernel is compiled for
_TICKETS = Random()  # not the program's, which would go on elsewhere, or be seeded anew
OVERLAP_CAPABILITY = 90  # from which launches can overlap (CUDA guide, programmatic launch)

MODULES: Mapping[str, str] = {
    "pointer": "autoswizzle.kernels.pointer",
    "tma": "autoswizzle.kernels.tma",
    "wgmma": "autoswizzle.kernels.wgmma",
    "multicast": "autoswizzle.kernels.multicast",
    "mma_sync": "autoswizzle.kernels.mma_sync",
    "gemv": "autoswizzle.kernels.gemv",
    "skinny": "autoswizzle.kernels.skinny",
}


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that each launch has to itself, by the parameter that takes it.

    counter: int32 elements, zeroed on the launch's stream. partials: fp32 elements, as they are.
    flags: int64 elements, as they are; with them comes `ticket`, the launch's own (handover.py).
    A parameter of these names gets None from a Scratch without such elements.
    """

    counter: int = 0
    partials: int = 0
    flags: int = 0

    def allocate(self, device: "device") -> dict[str, Any]:
        """What one launch has, None for what it has not.

        Its own for every launch keeps apart launches that overlap: on other streams, or as replays
        of CUDA graphs that captured them.
        """
        import torch

        values: dict[str, Any] = dict.fromkeys(SCRATCH)
        if self.counter:
            values["counter"] = torch.zeros(self.counter, dtype=torch.int32, device=device)
        if self.partials:
            values["partials"] = torch.empty(self.partials, dtype=torch.float32, device=device)
        if self.flags:
            values["flags"] = torch.empty(self.flags, dtype=torch.int64, device=device)
            values["ticket"] = _LEAST_TICKET + _TICKETS.getrandbits(62)
        return values


@dataclass(frozen=True, slots=True)
class Call:
    """One launch of a kernel, before its grid is known.

    kernel: the jit function. args: its run-time arguments by parameter name (tensors, integers,
    host tensor descriptors). constants: its constexprs by name. options: of the compiler
    (num_warps, num_stages, maxnreg, num_ctas). tiles: output tiles, or parts of them; the grid is
    tiles programs, or for a persistent kernel as many as are resident at once, if that is fewer,
    and a multiple of `multiple`. blocks: thread blocks of a program, which is a cluster if there
    are several. overlaps: see overlapping. scratch: memory of each launch's own, left out of args.
    """

    kernel: Any
    args: Mapping[str, Any]
    tiles: int
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    persistent: bool = False
    multiple: int = 1
    blocks: int = 1
    overlaps: bool = False
    scratch: Scratch = Scratch()

    def overlapping(self, capability: int) -> "Call":
        """The launch as it is on such a GPU: if overlaps says that the kernel waits by itself for
        the launch before (overlap.py), it starts beside its end, from compute capability 9.0 on.

        A kernel for older GPUs too has a constexpr OVERLAPS, False until here.
        """
        if not self.overlaps or capability < OVERLAP_CAPABILITY:
            return self
        told = {"OVERLAPS": True} if "OVERLAPS" in self.constants else {}
        options = {**self.options, "launch_pdl": True}
        return replace(self, constants={**self.constants, **told}, options=options)

    def arguments(self, device: "device") -> dict[str, Any]:
        """Every parameter's value, in order, with scratch on device."""
        values = {**self.scratch.allocate(device), **self.args, **self.constants}
        return {name: values[name] for name in self.kernel.arg_names}


class Family(Protocol):
    """A kernel family's module."""

    def call(
        self, config: GemmConfig, problem: GemmProblem, a: "Tensor", b: "Tensor", out: "Tensor"
    ) -> Call:
        """The launch of config on these operands."""
        ...


def family(kernel: str) -> Family:
    """The family that GemmConfig.kernel names; raises ConfigError. Imports triton."""
    if kernel not in MODULES:
        raise ConfigError(f"kernel must be one of {', '.join(MODULES)}, got {kernel!r}")
    return cast(Family, import_module(MODULES[kernel]))


def compile_options(config: GemmConfig) -> dict[str, Any]:
    """The compiler options that every family takes from its configuration."""
    options: dict[str, Any] = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "enable_fp_fusion": True,  # triton's default so far; ieee fp32 lives on fused multiply-add
    }
    return options | ({"maxnreg": config.max_registers} if config.max_registers else {})
