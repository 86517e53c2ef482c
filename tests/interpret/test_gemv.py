"""The gemv kernel in Triton's interpreter: exact integers, poisoned surroundings."""

import itertools

import pytest
import torch

from autoswizzle.config import GemmConfig
from autoswizzle.kernels import gemv as module
from autoswizzle.kernels import run
from autoswizzle.problem import GemmProblem

NAN = float("nan")
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


def config(m, **fields):
    chosen = {"block_n": 16, "block_k": 32, **fields}
    return GemmConfig("gemv", block_m=1 << (m - 1).bit_length(), swizzle="row", **chosen)


def ints(rows, cols, dtype="fp16"):
    """Integers in -2..2: products over k <= 64 are exact in every dtype."""
    return torch.randint(-2, 3, (rows, cols)).to(DTYPES[dtype])


def amid_nan(values, transposed=False):
    """The values as a view at an odd element, with NaN before it and after every row."""
    stored = values.t() if transposed else values
    rows, cols = stored.shape
    base = torch.full((1 + rows * (cols + 3),), NAN, dtype=values.dtype)
    view = base.as_strided((rows, cols), (cols + 3, 1), 1)
    view.copy_(stored)
    return view.t() if transposed else view


def check(chosen, m, n, k, dtype="fp16", layout="nt"):
    torch.manual_seed(0)
    a, b = ints(m, k, dtype), ints(k, n, dtype)
    expected = a.double() @ b.double()
    base = torch.full(((m + 2) * (n + 5),), NAN, dtype=DTYPES[dtype])
    out = base.as_strided((m, n), (n + 5, 1), n + 6)
    problem = GemmProblem(m, n, k, dtype, layout, aligned=False)
    run(chosen, problem, amid_nan(a, layout[0] == "t"), amid_nan(b, layout[1] == "t"), out)
    assert torch.equal(out.double(), expected), (chosen, m, n, k)
    out.fill_(NAN)
    assert base.isnan().all(), f"{chosen} wrote outside out"


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_rows_layouts_and_dtypes(m, dtype, layout):
    check(config(m), m, 37, 61, dtype, layout)


@pytest.mark.parametrize(
    ("block_n", "block_k"), [*itertools.product((2, 16, 64), (16, 64)), (2, 512), (128, 32)]
)
def test_blocks_that_divide_nothing(block_n, block_k):
    check(config(3, block_n=block_n, block_k=block_k), 3, 19, 33)


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 40, 32), (4, 1, 64), (2, 16, 1)])
def test_small_extents_and_whole_blocks(extents):
    check(config(extents[0]), *extents)


def test_offsets_of_64_bits(monkeypatch):
    monkeypatch.setattr(module, "INT32_MAX", 0)
    check(config(2), 2, 37, 61)


def test_rows_that_lie_past_32_bits():
    """Rows 2**30 elements apart: the third begins past 2**31. Untouched pages take no memory."""
    base = torch.empty(3 * 2**30 + 64, dtype=torch.float16)
    a, b = ints(4, 16), ints(16, 8)
    expected = a @ b
    problem = GemmProblem(4, 8, 16, "fp16")
    far = base.as_strided((4, 16), (2**30, 1)).copy_(a)
    out = torch.full((4, 8), NAN, dtype=torch.float16)
    run(config(4), problem, far, b, out)
    assert torch.equal(out, expected)
    far = base.as_strided((4, 8), (2**30, 1)).fill_(NAN)
    run(config(4), problem, a, b, far)
    assert torch.equal(far, expected)


def test_a_real_nan_stays_in_its_row():
    a, b = ints(3, 33, "fp32"), ints(33, 19, "fp32")
    expected = a @ b
    a[1, 5] = NAN
    out = torch.zeros(3, 19)
    run(config(3), GemmProblem(3, 19, 33, "fp32"), a, b, out)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], expected[[0, 2]])


def test_zero_strides_and_steps():
    a, b = ints(1, 24).expand(4, 24), ints(18, 48)[:, ::2].t()
    out = torch.full((18, 4), NAN, dtype=torch.float16).t()
    run(config(4), GemmProblem(4, 18, 24, "fp16", aligned=False), a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())
