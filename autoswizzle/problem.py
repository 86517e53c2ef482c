"""The GEMM problem: extents, dtypes, layout and precision of C[m, n] = A[m, k] @ B[k, n]."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from autoswizzle.errors import ProblemError, check_choice

ITEMSIZE = {"fp8e4m3": 1, "fp8e5m2": 1, "fp16": 2, "bf16": 2, "fp32": 4}  # bytes
TORCH_NAMES = {
    "fp8e4m3": "float8_e4m3fn",
    "fp8e5m2": "float8_e5m2",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
}
LAYOUTS = ("nn", "nt", "tn", "tt")
PRECISIONS = ("ieee", "tf32")
EPILOGUES = ("none",)
INT32_MAX = 2**31 - 1  # what a kernel counts and, unless it is told otherwise, addresses with
ALIGNMENT = 16  # bytes a base and a stride must be multiples of for TMA (CUDA guide, tensor maps)
TEXT_FORM = "[BATCHx]MxNxK[:DTYPE[:LAYOUT[:OPTION...]]], like 4096x14336x4096:bf16:nt"

_EXTENT = "([0-9]{1,18})"  # beyond any legal one, but short of what int() refuses to convert
_EXTENTS = re.compile(f"(?:{_EXTENT}x)?{_EXTENT}x{_EXTENT}x{_EXTENT}", re.ASCII)
_MAX_EXTENT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """One GEMM: C[batch, m, n] = A[batch, m, k] @ B[batch, k, n].

    dtype: of A and B (fp16, bf16, fp32, fp8e4m3, fp8e5m2); out_dtype: of C, "" for A's (bf16 for
        fp8).
    layout: "n" or "t" for A, then for B; t = the operand is stored transposed.
    precision: of an fp32 product, ieee or tf32; ieee for every other dtype.
    aligned: every base and outer stride is a multiple of 16 bytes and one stride of each
        operand is 1; None derives it from contiguous operands of these extents.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "nn"
    batch: int = 1
    out_dtype: str = ""
    precision: str = "ieee"
    epilogue: str = "none"
    aligned: bool | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "m", "n", "k"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MAX_EXTENT:
                raise ProblemError(f"{name} must be an integer in 1..{_MAX_EXTENT}, got {value!r}")
        check_choice("dtype", self.dtype, ITEMSIZE, ProblemError)
        if isinstance(self.out_dtype, str) and not self.out_dtype:
            default = "bf16" if self.dtype.startswith("fp8") else self.dtype
            object.__setattr__(self, "out_dtype", default)
        check_choice("out_dtype", self.out_dtype, ITEMSIZE, ProblemError)
        check_choice("layout", self.layout, LAYOUTS, ProblemError)
        check_choice("precision", self.precision, PRECISIONS, ProblemError)
        check_choice("epilogue", self.epilogue, EPILOGUES, ProblemError)
        if self.precision == "tf32" and self.dtype != "fp32":
            raise ProblemError(f"precision must be ieee for {self.dtype}, got 'tf32'")
        if self.aligned is not None and type(self.aligned) is not bool:
            raise ProblemError(f"aligned must be true, false or null, got {self.aligned!r}")
        if self.aligned is None:
            object.__setattr__(self, "aligned", self._contiguous_alignment())

    def _contiguous_alignment(self) -> bool:
        inner_a = self.k if self.layout[0] == "n" else self.m
        inner_b = self.n if self.layout[1] == "n" else self.k
        in_size, out_size = ITEMSIZE[self.dtype], ITEMSIZE[self.out_dtype]
        strides = (inner_a * in_size, inner_b * in_size, self.n * out_size)
        return all(stride % ALIGNMENT == 0 for stride in strides)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of A or B."""
        return ITEMSIZE[self.dtype]

    @property
    def out_itemsize(self) -> int:
        """Bytes of one element of C."""
        return ITEMSIZE[self.out_dtype]

    @property
    def flops(self) -> int:
        """Floating-point operations of the product, a multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes of A and B read once and C written once."""
        operands = (self.m + self.n) * self.k * self.itemsize
        return self.batch * (operands + self.m * self.n * self.out_itemsize)

    @property
    def rate(self) -> str:
        """Name of the arithmetic rate that bounds it: fp8, fp16, bf16, tf32 or fp32."""
        if self.dtype == "fp32":
            return "tf32" if self.precision == "tf32" else "fp32"
        return "fp8" if self.dtype.startswith("fp8") else self.dtype

    @property
    def fits_tma(self) -> bool:
        """Whether TMA can address the operands: they are aligned, and rows of C whole pieces of 16
        bytes, since a store that ends beyond n still writes up to the next 16 (triton issue 11583).
        """
        return bool(self.aligned) and self.n * self.out_itemsize % ALIGNMENT == 0

    def with_m(self, m: int) -> "GemmProblem":
        """The same problem with another m and the same alignment class."""
        return replace(self, m=m)

    @classmethod
    def parse(cls, text: str) -> "GemmProblem":
        """The problem that text spells, see TEXT_FORM; raises ProblemError quoting it.

        Options, each at most once: ieee | tf32, aligned | unaligned, out=DTYPE.
        """
        if not isinstance(text, str):
            raise ProblemError(f"problem must be {TEXT_FORM}, got {text!r:.80}")
        shape, *rest = text.strip().split(":")
        extents = _EXTENTS.fullmatch(shape)
        if extents is None:
            raise ProblemError(f"problem must be {TEXT_FORM}, got {text!r}")
        batch, m, n, k = (int(extent or 1) for extent in extents.groups())
        options: dict[str, Any] = dict(zip(("dtype", "layout"), rest, strict=False))
        for option in rest[2:]:
            name, value = _option(option, text)
            if name in options:
                raise ProblemError(f"{name} must be given once, got {option!r} too in {text!r}")
            options[name] = value
        try:
            return cls(m, n, k, batch=batch, **options)
        except ProblemError as error:
            raise ProblemError(f"{error} (in {text!r}; the form is {TEXT_FORM})") from None

    def __str__(self) -> str:
        default = GemmProblem(self.m, self.n, self.k, self.dtype, self.layout, self.batch)
        parts = ["x".join(map(str, ([self.batch] if self.batch > 1 else []) + self._extents()))]
        parts += [self.dtype, self.layout]
        if self.precision != default.precision:
            parts.append(self.precision)
        if self.aligned != default.aligned:
            parts.append("aligned" if self.aligned else "unaligned")
        if self.out_dtype != default.out_dtype:
            parts.append(f"out={self.out_dtype}")
        return ":".join(parts)

    def _extents(self) -> list[int]:
        return [self.m, self.n, self.k]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready mapping of every field."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "GemmProblem":
        """Inverse of to_dict; raises ProblemError on a missing, unknown or illegal field."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise ProblemError(
                f"problem must have the fields {', '.join(sorted(names))}, got {data!r}"
            )
        return cls(**data)


def operand_layout(rows: int, cols: int, strides: Sequence[int]) -> str | None:
    """How a rows x cols operand is stored: "n" row-major, "t" column-major, None neither.

    A stride along an extent of 1 is never used, so it does not count.
    """
    row_stride, col_stride = strides
    if (cols == 1 or col_stride == 1) and (rows == 1 or row_stride >= cols):
        return "n"
    if (rows == 1 or row_stride == 1) and (cols == 1 or col_stride >= rows):
        return "t"
    return None


def as_problem(problem: GemmProblem | str) -> GemmProblem:
    """The problem itself, or the one its text form spells; raises ProblemError."""
    return problem if isinstance(problem, GemmProblem) else GemmProblem.parse(problem)


def as_problems(problems: Iterable[GemmProblem | str]) -> list[GemmProblem]:
    """Every problem, in order; raises ProblemError for one that is none, or no list of them."""
    if isinstance(problems, str) or not isinstance(problems, Iterable):
        raise ProblemError(f"problems must be an iterable of problems, got {problems!r:.80}")
    return [as_problem(problem) for problem in problems]


def _option(option: str, text: str) -> tuple[str, Any]:
    """The field an option sets, and its value."""
    if option in PRECISIONS:
        return "precision", option
    if option in ("aligned", "unaligned"):
        return "aligned", option == "aligned"
    if option.startswith("out=") and option != "out=":
        return "out_dtype", option.removeprefix("out=")
    raise ProblemError(
        f"option must be ieee, tf32, aligned, unaligned or out=DTYPE, got {option!r} in {text!r}"
    )
