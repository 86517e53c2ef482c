"""Kernels compute the product, in Triton's interpreter: exact integers, poisoned surroundings."""

import itertools

import pytest
import torch

from autoswizzle.config import SWIZZLES, GemmConfig
from autoswizzle.errors import LaunchError, ProblemError
from autoswizzle.kernels import addressing, launch, run
from autoswizzle.problem import GemmProblem

NAN = float("nan")
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


def ints(rows, cols, dtype="fp16", seed=0):
    """Integers in -2..2: products over k <= 64 are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (rows, cols), generator=generator).to(DTYPES[dtype])


def in_poison(operand, transposed=False, offset=1, pad=3):
    """The operand amid NaN: a view at an odd element, with NaN after every row."""
    stored = operand.t() if transposed else operand
    rows, cols = stored.shape
    base = torch.full((offset + rows * (cols + pad) + pad,), NAN, dtype=operand.dtype)
    view = base.as_strided((rows, cols), (cols + pad, 1), offset)
    view.copy_(stored)
    return view.t() if transposed else view


def check(config, m, n, k, dtype="fp16", layout="nn"):
    """Run config on poisoned operands; the product is exact, everything around out stays NaN."""
    a = in_poison(ints(m, k, dtype, 1), layout[0] == "t")
    b = in_poison(ints(k, n, dtype, 2), layout[1] == "t")
    base = torch.full(((m + 4) * (n + 5),), NAN, dtype=DTYPES[dtype])
    out = base.as_strided((m, n), (n + 5, 1), 2 * (n + 5) + 1)
    problem = GemmProblem(m, n, k, dtype, layout, aligned=False)
    run(config, problem, a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double()), (config, m, n, k)
    out.fill_(NAN)
    assert base.isnan().all(), f"{config} wrote outside out"


def check_aligned(config, m, n, k, dtype="fp16", layout="nn"):
    """As check, on operands that tensor maps can address."""
    a = in_poison(ints(m, k, dtype, 1), layout[0] == "t", 8, -(m if layout[0] == "t" else k) % 8)
    b = in_poison(ints(k, n, dtype, 2), layout[1] == "t", 8, -(k if layout[1] == "t" else n) % 8)
    wide = n + -n % 8 + 8
    base = torch.full(((m + 4) * wide,), NAN, dtype=DTYPES[dtype])
    out = base.as_strided((m, n), (wide, 1), 2 * wide + 8)
    run(config, GemmProblem(m, n, k, dtype, layout, aligned=True), a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double()), (config, m, n, k)
    out.fill_(NAN)
    assert base.isnan().all(), f"{config} wrote outside out"


def tma(**changes):
    return config(kernel="tma", persistent=True, **changes)


def config(**changes):
    return GemmConfig(**{"block_m": 16, "block_n": 16, "block_k": 16, **changes})


def gemv(m, **changes):
    chosen = {"block_n": 16, "block_k": 32, **changes}
    return GemmConfig("gemv", block_m=1 << (m - 1).bit_length(), swizzle="row", **chosen)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(
    "launch",
    [{}, {"persistent": True}, {"persistent": True, "scheduling": "dynamic"}],
    ids=["per-tile", "persistent", "dynamic"],
)
def test_every_order_computes_ragged_grids(swizzle, launch):
    for grid_m, grid_n in [(5, 3), (1, 4), (3, 2)]:
        check(
            config(swizzle=swizzle, group_size=2 if "group" in swizzle else 8, **launch),
            16 * grid_m - 1,
            16 * grid_n - 3,
            20,
        )


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("persistent", [False, True])
def test_layouts_and_dtypes(layout, dtype, persistent):
    check(config(persistent=persistent), 33, 17, 33, dtype, layout)


@pytest.mark.parametrize("blocks", list(itertools.product((16, 64), (32, 128), (16, 64))))
def test_poison_past_the_extents_never_leaks(blocks):
    block_m, block_n, block_k = blocks
    check(config(block_m=block_m, block_n=block_n, block_k=block_k), 17, 19, 33)


@pytest.mark.parametrize("changes", [{}, {"split_k": 3}, {"persistent": True}], ids=str)
def test_a_real_nan_stays_in_its_row(changes):
    a, b, out = ints(17, 33, "fp32"), ints(33, 19, "fp32"), torch.full((17, 19), NAN)
    expected = a @ b
    a[3, 5] = NAN
    run(config(**changes), GemmProblem(17, 19, 33, "fp32"), a, b, out)
    assert out[3].isnan().all()
    assert torch.equal(out[:3], expected[:3])
    assert torch.equal(out[4:], expected[4:])


@pytest.mark.parametrize("k", [16, 32, 64])
def test_whole_k_blocks(k):
    check(config(), 20, 18, k)


@pytest.mark.parametrize("split_k", [2, 3, 4])
@pytest.mark.parametrize("k", [64, 61, 49])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_split_k(layout, k, split_k):
    for swizzle in ("row", "serpentine"):
        check(config(split_k=split_k, swizzle=swizzle), 33, 37, k, layout=layout)


def cancelling(rows, cols):
    """Operands of a product of 0.5 everywhere, whose first quarter of k fp16 rounds to a whole."""
    a = torch.ones(rows, 8192, dtype=torch.float16)
    b = torch.zeros(8192, cols, dtype=torch.float16)
    b[:2048], b[0], b[2048:4096] = 1, 1.5, -1
    return a, b


CANCELLING = [
    *({"split_k": parts} for parts in (1, 2, 4, 8)),
    {"persistent": True},
    {"kernel": "tma", "persistent": True},
    {"kernel": "tma", "persistent": True, "padded": True},
]


@pytest.mark.parametrize("changes", CANCELLING, ids=str)
def test_partial_sums_are_kept_in_float32(changes):  # N09
    chosen = config(block_k=256, **changes)
    a, b = cancelling(16, 15 if chosen.padded else 16)
    for _ in range(2):
        out = torch.full((16, b.shape[1]), NAN, dtype=torch.float16)
        run(chosen, GemmProblem(*out.shape, 8192, "fp16"), a, b, out)
        assert (out == 0.5).all()


def test_gemv_sums_are_kept_in_float32():  # N09
    """Each of 16 lanes adds 4096, the first with a half, then takes 4096 away."""
    a, b = torch.ones(2, 4096, dtype=torch.float16), torch.full((4096, 16), 32.0).half()
    b[0], b[2048:] = 32.5, -32
    out = torch.full((2, 16), NAN, dtype=torch.float16)
    run(gemv(2, block_k=16), GemmProblem(2, 16, 4096, "fp16"), a, b, out)
    assert (out == 0.5).all()


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 40, 16), (40, 1, 16), (16, 16, 1)])
def test_unit_extents(extents):
    check(config(), *extents)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padded_rows_for_operands_that_tma_cannot_address(layout, dtype):
    for extents in [(33, 17, 35), (16, 24, 32), (1, 19, 33), (33, 1, 1)]:
        check(tma(padded=True), *extents, dtype, layout)


def test_padded_rows_for_operands_of_any_strides():
    a = ints(33, 70)[:, ::2]
    b = ints(35, 1).expand(35, 24)
    base = torch.full((33, 48), NAN, dtype=torch.float16)
    out = base[:, ::2]
    problem = GemmProblem(33, 24, 35, "fp16", aligned=False)
    run(tma(padded=True), problem, a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())
    assert base[:, 1::2].isnan().all()


@pytest.mark.parametrize(
    ("m", "n", "k", "copied"), [(33, 24, 32, 0), (33, 24, 35, 1), (33, 20, 32, 2), (33, 17, 35, 3)]
)
def test_only_what_tma_cannot_address_is_copied(monkeypatch, m, n, k, copied):
    """k = 35: rows of a; n = 20, 17: those of b and out too."""
    seen = []
    kept = launch.copy

    def copy(source, target):
        seen.append(source)
        kept(source, target)

    monkeypatch.setattr(launch, "copy", copy)
    a, b, out = ints(m, k), ints(k, n), torch.full((m, n), NAN, dtype=torch.float16)
    run(tma(padded=True), GemmProblem(m, n, k, "fp16"), a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())
    assert len(seen) == copied


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tma_layouts_and_dtypes(layout, dtype):
    check_aligned(tma(), 33, 17, 35, dtype, layout)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("changes", [{"flatten": True}, {"scheduling": "dynamic"}])
def test_tma_orders_on_ragged_grids(swizzle, changes):
    for grid_m, grid_n in [(5, 3), (1, 4)]:
        check_aligned(tma(swizzle=swizzle, **changes), 16 * grid_m - 1, 16 * grid_n - 3, 20)


@pytest.mark.parametrize("subtile", [1, 2, 4])
def test_tma_epilogue_subtiles(subtile):
    check_aligned(tma(block_n=64, epilogue_subtile=subtile), 30, 90, 20)


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 40, 16), (40, 1, 16), (16, 16, 1)])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_tma_unit_extents(extents, layout):
    check_aligned(tma(), *extents, layout=layout)


def test_tma_refuses_what_it_can_not_address():
    problem = GemmProblem(16, 16, 16, "fp16")
    good, out = ints(16, 16), torch.empty(16, 16, dtype=torch.float16)
    odd = in_poison(good)
    for name, operands in {
        "a": (odd, good, out),
        "b": (good, good.t(), out),
        "out": (good, good, torch.empty(16, 20, dtype=torch.float16)[:, :16]),
    }.items():
        with pytest.raises(LaunchError, match=rf"{name} must have a base and an outer stride"):
            run(tma(), problem, *operands)


def test_zero_strides_steps_and_transposed_out():
    row, column, wide = ints(1, 24), ints(24, 1), ints(20, 48)
    cases = [
        (row.expand(20, 24), column.expand(24, 18)),
        (wide[:, ::2], ints(18, 24).t()),
        (ints(20, 24)[:, :1].expand(20, 24), ints(48, 36)[::2, ::2]),
    ]
    for a, b in cases:
        out = torch.full((18, 20), NAN, dtype=torch.float16).t()
        run(config(), GemmProblem(20, 18, 24, "fp16", aligned=False), a, b, out)
        assert torch.equal(out.double(), a.double() @ b.double())


def test_offsets_past_32_bits():
    """Rows 2**30 elements apart: the third begins past 2**31. Untouched pages take no memory."""
    base = torch.empty(3 * 2**30 + 64, dtype=torch.float16)
    a = base.as_strided((4, 16), (2**30, 1))
    a.copy_(ints(4, 16))
    b, out = ints(16, 16, seed=1), torch.full((4, 16), NAN, dtype=torch.float16)
    run(config(), GemmProblem(4, 16, 16, "fp16"), a, b, out)
    assert torch.equal(out, a.contiguous() @ b)
    turned = torch.full((16, 4), NAN, dtype=torch.float16)
    run(config(), GemmProblem(16, 4, 16, "fp16", "nt"), b.t(), a.t(), turned)
    assert torch.equal(turned, b.t() @ a.contiguous().t())
    far = base.as_strided((4, 16), (2**30, 1))
    run(config(), GemmProblem(4, 16, 16, "fp16"), ints(4, 16), b, far)
    assert torch.equal(far, ints(4, 16) @ b)


def test_other_extents_are_refused():
    with pytest.raises(ProblemError, match=r"b must have shape \(16, 16\), got \(16, 17\)"):
        run(config(), GemmProblem(16, 16, 16, "fp16"), ints(16, 16), ints(16, 17), ints(16, 16))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_gemv_rows_layouts_and_dtypes(m, dtype, layout):
    check(gemv(m), m, 37, 61, dtype, layout)


@pytest.mark.parametrize(
    ("block_n", "block_k"), [*itertools.product((2, 16, 64), (16, 64)), (2, 512), (128, 32)]
)
def test_gemv_blocks_that_divide_nothing(block_n, block_k):
    check(gemv(3, block_n=block_n, block_k=block_k), 3, 19, 33, layout="nt")


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 40, 32), (4, 1, 64), (2, 16, 1)])
def test_gemv_small_extents_and_whole_blocks(extents):
    check(gemv(extents[0]), *extents, layout="nt")


def test_gemv_offsets_of_64_bits(monkeypatch):
    monkeypatch.setattr(addressing, "INT32_MAX", 0)
    check(gemv(2), 2, 37, 61, layout="nt")


def test_gemv_rows_that_lie_past_32_bits():
    """Rows 2**30 elements apart: the third begins past 2**31. Untouched pages take no memory."""
    base = torch.empty(3 * 2**30 + 64, dtype=torch.float16)
    a, b = ints(4, 16), ints(16, 8)
    expected = a @ b
    problem = GemmProblem(4, 8, 16, "fp16")
    far = base.as_strided((4, 16), (2**30, 1)).copy_(a)
    out = torch.full((4, 8), NAN, dtype=torch.float16)
    run(gemv(4), problem, far, b, out)
    assert torch.equal(out, expected)
    far = base.as_strided((4, 8), (2**30, 1)).fill_(NAN)
    run(gemv(4), problem, a, b, far)
    assert torch.equal(far, expected)


def test_gemv_a_real_nan_stays_in_its_row():
    a, b = ints(3, 33, "fp32"), ints(33, 19, "fp32")
    expected = a @ b
    a[1, 5] = NAN
    out = torch.zeros(3, 19)
    run(gemv(3), GemmProblem(3, 19, 33, "fp32"), a, b, out)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], expected[[0, 2]])


def test_gemv_zero_strides_and_steps():
    a, b = ints(1, 24).expand(4, 24), ints(18, 48)[:, ::2].t()
    out = torch.full((18, 4), NAN, dtype=torch.float16).t()
    run(gemv(4), GemmProblem(4, 18, 24, "fp16", aligned=False), a, b, out)
    assert torch.equal(out.double(), a.double() @ b.double())
