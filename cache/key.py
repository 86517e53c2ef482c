"""What a tuned entry depends on, and its digests.

A lookup knows the GPU, the problem and the compiler, but not yet which kernel family won. So
`source`, the hash of that family's code, takes no part in finding an entry: it decides whether a
found one still holds.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from autoswizzle.errors import CacheError, ProblemError
from autoswizzle.hardware import Gpu
from autoswizzle.problem import GemmProblem

NO_TRITON = ""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The facts that one tuned configuration depends on.

    capability: 90 for compute capability 9.0. l2_bytes: as reported. shared_bytes: a block's limit.
    triton: "major.minor". source: hash of the kernel family's source, "" for torch.
    The GPU's marketing name is left out: the same chip goes by several.
    """

    vendor: str
    capability: int
    num_sms: int
    l2_bytes: int
    shared_bytes: int
    problem: GemmProblem
    triton: str
    source: str = ""

    @property
    def digest(self) -> str:
        """Hex SHA-256 of every field."""
        return _sha256(self.flat())

    @property
    def stem(self) -> str:
        """Hex SHA-256 of every field but m and source: entries of one stem are neighbours in m."""
        return _sha256({**self.flat(), "m": None, "source": None})

    @property
    def file_name(self) -> str:
        """The entry's file: a readable problem, then stem, m and digest; at most 160 characters."""
        readable = str(self.problem).replace(":", "-").replace("=", "-")
        parts = (readable, self.stem[:32], str(self.problem.m), self.digest[:16], "json")
        return ".".join(parts)

    def flat(self) -> dict[str, Any]:
        """Every field by name, those of the problem beside those of the GPU."""
        data = {name: getattr(self, name) for name in _FIELDS}
        problem = data.pop("problem")
        return {**{name: getattr(problem, name) for name in _PROBLEM_FIELDS}, **data}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of every field."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> "CacheKey":
        """Inverse of to_dict; raises CacheError on a missing, unknown or illegal field."""
        if not isinstance(data, dict) or set(data) != set(_FIELDS):
            raise CacheError(f"key must have the fields {', '.join(_FIELDS)}, got {data!r:.200}")
        for field in fields(cls):
            value = data[field.name]
            if field.type in (int, str) and type(value) is not field.type:
                raise CacheError(
                    f"key field {field.name} must be of type {field.type.__name__}, "
                    f"got {value!r:.200}"
                )
            if isinstance(value, str) and not value.isprintable():  # no newline, no escape code
                raise CacheError(f"key field {field.name} must be printable, got {value!r:.200}")
        try:
            problem = GemmProblem.from_dict(data["problem"])
        except ProblemError as error:
            raise CacheError(str(error)) from None
        return cls(**{**data, "problem": problem})


_FIELDS = tuple(field.name for field in fields(CacheKey))
_PROBLEM_FIELDS = tuple(field.name for field in fields(GemmProblem))


def key_for(
    problem: GemmProblem, gpu: Gpu, source: str = "", triton: tuple[int, int] | None = None
) -> CacheKey:
    """The key of problem on gpu under one triton version (None: not installed)."""
    return CacheKey(
        vendor=gpu.vendor,
        capability=gpu.capability,
        num_sms=gpu.num_sms,
        l2_bytes=gpu.l2_bytes,
        shared_bytes=gpu.limits.shared_bytes_per_block,
        problem=problem,
        triton=NO_TRITON if triton is None else ".".join(map(str, triton)),
        source=source,
    )


def _sha256(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
