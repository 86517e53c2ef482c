"""The kernel configuration: everything a launch may choose for one GEMM."""

from dataclasses import dataclass, fields
from typing import Any

from autoswizzle.errors import ConfigError, check_choice

KERNELS = ("pointer", "tma", "wgmma", "multicast", "mma_sync", "gemv", "skinny", "torch")
SWIZZLES = ("row", "column", "grouped", "grouped_n", "morton", "xor", "hilbert", "serpentine")
GROUPED_SWIZZLES = ("grouped", "grouped_n", "serpentine")  # those that read group_size
SCHEDULINGS = ("static", "dynamic")
WARP_SPECIALIZE = ("none", "cooperative", "pingpong")
SMEM_SWIZZLES = ("none", "32", "64", "128", "padded")

_CHOICES = {
    "kernel": KERNELS,
    "swizzle": SWIZZLES,
    "scheduling": SCHEDULINGS,
    "warp_specialize": WARP_SPECIALIZE,
    "smem_a": SMEM_SWIZZLES,
    "smem_b": SMEM_SWIZZLES,
    "smem_c": SMEM_SWIZZLES,
}


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """One way to run a GEMM.

    block_m, block_n, block_k: elements of an output tile and of one k step. num_warps: of the
    computing part. num_stages: k steps in flight. swizzle: the tile order; group_size: tiles a
    group is high (grouped, serpentine) or wide (grouped_n). persistent: programs loop over tiles,
    handed out by index (static) or by an atomic counter (dynamic). split_k: parts that the k steps
    of every tile are split into; stream_k: the tiles of the last, partial wave are shared by all
    SMs, as its size asks for (space.tail). swap_ab: C's transpose is multiplied, B's columns in the
    place of A's rows (wgmma, multicast). epilogue_subtile: column slices the output tile is stored
    in. flatten: the tile and k loops are fused (tma). warp_specialize: how warps are split
    (wgmma, multicast). cluster_m, cluster_n: thread blocks of a cluster, whose tiles lie side by
    side along m and n (multicast). padded: operands that TMA can't address are copied to padded
    rows first, and the result from such rows (tma, wgmma, multicast). smem_a, smem_b, smem_c:
    shared-memory swizzle bytes (mma_sync). max_registers: compiler cap per thread, 0 for none.
    Fields a kernel does not use keep their defaults (space.why_illegal).
    """

    kernel: str = "pointer"
    block_m: int = 128
    block_n: int = 128
    block_k: int = 32
    num_warps: int = 4
    num_stages: int = 3
    swizzle: str = "grouped"
    group_size: int = 8
    persistent: bool = False
    scheduling: str = "static"
    split_k: int = 1
    stream_k: bool = False
    swap_ab: bool = False
    flatten: bool = False
    epilogue_subtile: int = 1
    warp_specialize: str = "none"
    cluster_m: int = 1
    cluster_n: int = 1
    padded: bool = False
    smem_a: str = "none"
    smem_b: str = "none"
    smem_c: str = "none"
    max_registers: int = 0

    def __post_init__(self) -> None:
        for name, kind in _KINDS:
            value = getattr(self, name)
            if name in _CHOICES:
                check_choice(name, value, _CHOICES[name], ConfigError)
            elif type(value) is not kind:
                raise ConfigError(f"{name} must be of type {kind.__name__}, got {value!r}")
            elif type(value) is int and value < (0 if name == "max_registers" else 1):
                raise ConfigError(f"{name} must be at least 1, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of the kernel and every field that differs from its default."""
        changed = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        return {"kernel": self.kernel, **changed}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "GemmConfig":
        """Inverse of to_dict; raises ConfigError on an unknown field or illegal value."""
        names = [field.name for field in fields(cls)]
        if not isinstance(data, dict):
            raise ConfigError(f"config must be a mapping, got {data!r}")
        unknown = [name for name in data if name not in names]
        if unknown:
            raise ConfigError(f"config field must be one of {', '.join(names)}, got {unknown[0]!r}")
        return cls(**data)

    @property
    def tile(self) -> str:
        """Elements of an output tile and of one k step, like 128x128x32."""
        return f"{self.block_m}x{self.block_n}x{self.block_k}"

    @property
    def order(self) -> str:
        """The tile order with its group size, if it has one, like grouped8."""
        return self.swizzle + (str(self.group_size) if self.swizzle in GROUPED_SWIZZLES else "")

    def __str__(self) -> str:
        if self.kernel == "torch":
            return "torch"
        parts = [self.kernel, self.tile, f"w{self.num_warps}", f"s{self.num_stages}", self.order]
        shown = (
            "block_m",
            "block_n",
            "block_k",
            "num_warps",
            "num_stages",
            "swizzle",
            "group_size",
        )
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name in shown or value == field.default:
                continue
            parts.append(field.name if value is True else f"{field.name}={value}")
        return " ".join(parts)


# of each field, by name: dataclasses.fields would list them anew for every one of a large space
_KINDS = tuple((field.name, type(field.default)) for field in fields(GemmConfig))

TORCH = GemmConfig(kernel="torch")
MARGIN = 0.02  # by which one of ours must be faster than TORCH to be taken instead: 2 %


def check_type(config: object) -> None:
    """Raises ConfigError when what the caller gave as config is none."""
    if not isinstance(config, GemmConfig):
        raise ConfigError(f"config must be a GemmConfig, got {config!r:.80}")
