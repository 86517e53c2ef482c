import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoswizzle.errors import ProblemError
from autoswizzle.problem import ITEMSIZE, LAYOUTS, GemmProblem, operand_layout

extents = st.integers(1, 2**20)
problems = st.builds(
    GemmProblem,
    extents,
    extents,
    extents,
    dtype=st.sampled_from(sorted(ITEMSIZE)),
    layout=st.sampled_from(LAYOUTS),
    batch=st.integers(1, 100),
    out_dtype=st.sampled_from(["", *ITEMSIZE]),
    aligned=st.sampled_from([None, True, False]),
)


@given(problems)
def test_text_and_dict_round_trip(problem: GemmProblem) -> None:
    assert GemmProblem.parse(str(problem)) == problem
    assert GemmProblem.from_dict(problem.to_dict()) == problem


def test_text_form() -> None:
    parsed = GemmProblem.parse("4096x14336x512:bf16:nt")
    assert (parsed.batch, parsed.m, parsed.n, parsed.k) == (1, 4096, 14336, 512)
    assert (parsed.dtype, parsed.layout, parsed.out_dtype) == ("bf16", "nt", "bf16")
    assert GemmProblem.parse("8x512x256x64:fp16:nn").batch == 8
    assert GemmProblem.parse("64x64x64") == GemmProblem(64, 64, 64, "bf16", "nn")
    assert GemmProblem.parse("64x64x64:fp32:nn:tf32").precision == "tf32"
    assert str(GemmProblem(64, 64, 64, "fp32", precision="tf32")) == "64x64x64:fp32:nn:tf32"
    assert GemmProblem(64, 64, 64, "fp8e4m3").out_dtype == "bf16"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("128x64", "128x64"),
        ("0x4x4", "m must"),
        ("-1x2x3", "-1x2x3"),
        ("1e3x2x2", "1e3x2x2"),
        ("", "''"),
        ("4x4x4:fp17", "dtype must"),
        ("4x4x4:bf16:xx", "layout must"),
        ("4x4x4:bf16:nn:tf32", "precision must"),
        ("4x4x4:bf16:nn:what", "'what'"),
        ("4x4x4:bf16:nn:out=int8", "out_dtype must"),
        ("4294967296x4x4", "m must"),
        ("1x2x3x4x5", "1x2x3x4x5"),
        ("\u0664x4x4", "\u0664"),
    ],
)
def test_illegal_text_is_named(text: str, named: str) -> None:
    with pytest.raises(ProblemError) as raised:
        GemmProblem.parse(text)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "8", 2**31])
def test_illegal_extent(value: object) -> None:
    with pytest.raises(ProblemError, match="k must be an integer in 1"):
        GemmProblem(1, 1, value)  # type: ignore[arg-type]


def test_from_dict_names_missing_and_unknown_fields() -> None:
    data = GemmProblem(1, 2, 3).to_dict()
    with pytest.raises(ProblemError, match="must have the fields"):
        GemmProblem.from_dict({**data, "extra": 1})
    del data["k"]
    with pytest.raises(ProblemError, match="must have the fields"):
        GemmProblem.from_dict(data)


def test_alignment_of_contiguous_operands() -> None:
    assert GemmProblem(100, 128, 128, "bf16", "nn").aligned
    assert not GemmProblem(100, 128, 127, "bf16", "nn").aligned  # a's rows are 254 bytes
    assert not GemmProblem(100, 127, 128, "bf16", "nt").aligned  # c's rows are 254 bytes
    assert not GemmProblem(100, 128, 128, "bf16", "tn").aligned  # a's columns are 200 bytes
    assert GemmProblem(100, 128, 128, "fp32", "tn").aligned


def test_flops_and_bytes() -> None:
    problem = GemmProblem(2, 3, 5, "bf16", batch=7)
    assert problem.flops == 2 * 7 * 2 * 3 * 5
    assert problem.min_bytes == 7 * (2 * 5 * 2 + 5 * 3 * 2 + 2 * 3 * 2)


@pytest.mark.parametrize(
    ("rows", "cols", "strides", "layout"),
    [
        (4, 8, (8, 1), "n"),
        (4, 8, (1, 4), "t"),
        (4, 8, (16, 2), None),
        (4, 8, (0, 1), None),
        (4, 8, (1, 0), None),
        (4, 8, (4, 1), None),
        (1, 8, (99, 1), "n"),
        (1, 8, (1, 1), "n"),
        (8, 1, (1, 99), "n"),
        (8, 1, (3, 99), "n"),
        (1, 8, (99, 5), "t"),
    ],
)
def test_operand_layout(rows: int, cols: int, strides: tuple[int, int], layout: str | None) -> None:
    assert operand_layout(rows, cols, strides) == layout
