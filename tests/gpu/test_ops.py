"""ops.py on a GPU: torch's contract, with own kernels forced wherever they are legal."""

import contextlib
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch

from autoswizzle import dispatch, kernels, plans, recall
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import shared_store
from autoswizzle.config import GemmConfig
from autoswizzle.dispatch import dispatcher, explain, pose
from autoswizzle.errors import CandidateError, ConfigError
from autoswizzle.hardware import detect
from autoswizzle.operands import as_matrices, fp32_precision, why_torch
from autoswizzle.ops import matmul, prepare
from autoswizzle.problem import TORCH_NAMES, GemmProblem
from autoswizzle.settings import settings
from autoswizzle.space import FAMILIES, candidates, why_illegal
from autoswizzle.toolchain import triton_version

pytestmark = pytest.mark.gpu

# Relative rounding of a result
UNIT = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}
OWN = tuple(FAMILIES)


def ints(*shape, dtype=torch.bfloat16, device="cuda"):
    return torch.randint(-2, 3, shape, device=device).to(dtype)


def assert_close(ours, a, b):
    """The bound of fp32 accumulation (and tf32 inputs), against a float64 product."""
    x, y = a.double(), b.double()
    exact, size = torch.matmul(x, y), torch.matmul(x.abs(), y.abs())
    k = a.shape[-1]
    bound = UNIT[ours.dtype] * exact.abs() + 4 * k * 2**-24 * size
    if ours.dtype is torch.float32 and fp32_precision() == "tf32":
        bound += 2**-9 * size
    assert ((ours.double() - exact).abs() <= bound).all()


def config_for(problem, kernel):
    """The first legal candidate of a family, or None."""
    gpu = detect(torch.cuda.current_device())
    return next((c for c in candidates(problem, gpu) if c.kernel == kernel), None)


def posed(a, b):
    """The problem of operands that an own kernel may be forced on, irregular strides included."""
    if why_torch(a, b) is not None or (matrices := as_matrices(a, b)) is None:
        return None
    found = pose(a, b)
    return found if isinstance(found, GemmProblem) else dispatch.problem_of(*matrices)


def forced(a, b, kernel, **kwargs):
    """matmul on one family, or None where it has no legal candidate for these operands."""
    problem = posed(a.detach(), b.detach())
    config = None if problem is None else config_for(problem, kernel)
    if config is None:
        return None
    try:
        return matmul(a, b, config=config, **kwargs)
    except ConfigError:
        return None


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Settings, user cache and decisions of its own for each test."""
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path))
    for singleton in (settings, shared_store, dispatcher):
        singleton.cache_clear()
    yield
    for singleton in (settings, shared_store, dispatcher):
        singleton.cache_clear()


def tune(problem, kernel="pointer"):
    """Put an entry for problem on this GPU."""
    config = config_for(problem, kernel)
    keep(problem, config)
    return config


def keep(problem, config):
    """Put an entry of this configuration for problem on this GPU."""
    gpu = detect(torch.cuda.current_device())
    key = key_for(problem, gpu, kernels.current_source(config.kernel), triton_version())
    dispatcher().store.put(CacheEntry(key, config, time_us=1.0, torch_us=2.0, ratio=2.0))


SPLITS = [
    GemmConfig(block_m=64, block_n=64, block_k=64, split_k=8),
    GemmConfig(
        kernel="wgmma", block_n=256, block_k=64, num_stages=4, persistent=True, epilogue_subtile=4,
        warp_specialize="cooperative", split_k=8,
    ),
]  # fmt: skip
each_split = pytest.mark.parametrize("split", SPLITS, ids=lambda config: config.kernel)


def need_split(problem, config):
    """Skip where its kernel can't split k, as wgmma on other GPUs."""
    reason = why_illegal(config, problem, detect(torch.cuda.current_device()))
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=["ieee", "tf32"])
def precision(request):
    torch.backends.cuda.matmul.fp32_precision = request.param
    yield request.param
    torch.backends.cuda.matmul.fp32_precision = "ieee"


# OpInfo


def samples(dtype, **kwargs):
    pytest.importorskip("expecttest", reason="torch's OpInfo samples need it")
    from torch.testing._internal.common_methods_invocations import op_db

    [info] = [info for info in op_db if info.name == "matmul"]
    return info.sample_inputs("cuda", dtype, **kwargs)


OTHERS = [torch.complex64, torch.complex128, torch.float64, torch.int32, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", [*UNIT, *OTHERS], ids=str)
def test_opinfo_samples(dtype):
    for sample in samples(dtype):
        a, b = sample.input, sample.args[0]
        try:
            theirs = torch.matmul(a, b)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                matmul(a, b)
            continue
        ours = matmul(a, b)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_opinfo_samples_on_own_kernels(dtype, kernel, precision, capsys, record_property):
    if dtype is not torch.float32 and precision == "tf32":
        pytest.skip("tf32 concerns float32 alone")
    reached = total = 0
    for sample in samples(dtype, requires_grad=True):
        a, b = sample.input, sample.args[0]
        total += 1
        ours = forced(a, b, kernel)
        if ours is None:
            continue
        reached += 1
        theirs = torch.matmul(a, b)
        assert (ours.shape, ours.dtype, ours.stride()) == (
            theirs.shape,
            theirs.dtype,
            theirs.stride(),
        )
        assert_close(ours.detach(), a.detach(), b.detach())
        seed = torch.randn_like(ours)
        for mine, its in zip(
            torch.autograd.grad(ours, (a, b), seed),
            torch.autograd.grad(theirs, (a, b), seed),
            strict=True,
        ):
            torch.testing.assert_close(mine, its)
    record_property("reached", f"{reached} of {total}")
    with capsys.disabled():
        print(f"\n{kernel}, {dtype}, {precision}: {reached} of {total} samples reached it")
    assert reached or kernel != "pointer"


# Numerics and semantics


def test_empty_extents_give_zeros():
    for _ in range(50):
        poison = torch.full((3, 2, 3), float("nan"), device="cuda")
        del poison
        ones = torch.ones(3, 2, 0, device="cuda"), torch.ones(3, 0, 3, device="cuda")
        assert torch.equal(matmul(*ones), torch.zeros(3, 2, 3, device="cuda"))
    a = torch.rand(4, 0, device="cuda", requires_grad=True)
    b = torch.rand(0, 6, device="cuda", requires_grad=True)
    product = matmul(a, b)
    assert torch.equal(product, torch.zeros(4, 6, device="cuda"))
    product.sum().backward()
    assert (a.grad.shape, b.grad.shape) == ((4, 0), (0, 6))


@pytest.mark.parametrize("kernel", OWN)
def test_fp32_follows_the_present_setting(kernel):
    eye = torch.eye(46, device="cuda")
    counted = torch.arange(46 * 46.0, device="cuda").view(46, 46)
    a, b = torch.randn(2, 512, 512, device="cuda")
    if forced(eye, counted, kernel) is None:
        pytest.skip(f"{kernel} does not take it")
    assert torch.equal(forced(eye, counted, kernel), counted)
    torch.set_float32_matmul_precision("high")
    try:
        assert_close(matmul(a, b), a, b)
        tf32 = forced(a, b, kernel)
        if tf32 is not None:
            assert_close(tf32, a, b)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(forced(eye, counted, kernel), counted)


@pytest.mark.parametrize("kernel", OWN)
def test_poison_beyond_the_operands_never_leaks(kernel):
    base_a = torch.full((64, 128), float("nan"), dtype=torch.bfloat16, device="cuda")
    base_b = torch.full((128, 64), float("nan"), dtype=torch.bfloat16, device="cuda")
    a, b = base_a[:17, :33], base_b[:33, :19]
    a.copy_(ints(17, 33))
    b.copy_(ints(33, 19))
    before = base_a.clone(), base_b.clone()
    out = torch.full((17, 19), float("nan"), dtype=torch.bfloat16, device="cuda")
    ours = forced(a, b, kernel, out=out)
    if ours is None:
        pytest.skip(f"{kernel} does not take it")
    assert torch.equal(ours, torch.matmul(a.contiguous(), b.contiguous()))
    torch.testing.assert_close((base_a, base_b), before, rtol=0, atol=0, equal_nan=True)
    a[3, 5] = float("nan")
    broken = forced(a, b, kernel)
    assert broken[3].isnan().all()
    rows = [row for row in range(17) if row != 3]
    assert torch.equal(broken[rows], ours[rows])


def cancelling(rows, cols, device="cuda"):
    """Operands of a product of 0.5 everywhere, whose parts over k round to 0 in bfloat16."""
    a = torch.ones(rows, 4096, dtype=torch.bfloat16, device=device)
    b = torch.zeros(4096, cols, dtype=torch.bfloat16, device=device)
    b[:1024], b[0], b[1024:2048] = 1, 1.5, -1
    return a, b


@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize("extent", [1, 16])
def test_cancelling_sums(kernel, extent):
    ours = forced(*cancelling(extent, extent), kernel)
    if ours is None:
        pytest.skip(f"{kernel} does not take it")
    assert (ours == 0.5).all()


@each_split
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_parts_of_a_split_sum_are_kept_in_float32(split, parts):
    config = replace(split, split_k=parts)
    a, b = cancelling(16, 16)
    need_split(dispatch.problem_of(a, b), config)
    for _ in range(3):
        out = torch.full((16, 16), float("nan"), dtype=torch.bfloat16, device="cuda")
        assert (matmul(a, b, out=out, config=config) == 0.5).all()


FRESH = """
import torch
from autoswizzle import plans
from autoswizzle.ops import matmul

a, b = (torch.randint(-1, 2, shape, device="cuda").half() for shape in ((96, 512), (512, 96)))
exact, nan = (a.double() @ b.double()).half(), float("nan")
out = torch.full((96, 96), nan, dtype=torch.float16, device="cuda")
for _ in range(3):
    assert torch.equal(matmul(a, b, out=out), exact)
    out.fill_(nan)
for _ in range(3):
    poison = torch.full((96, 96), nan, dtype=torch.float16, device="cuda")
    del poison
    assert torch.equal(matmul(a, b), exact)
assert plans.plan_of(a, b).launcher is not None
assert plans.plan_of(a, b).config.split_k == 8
"""


@each_split
def test_a_split_entry_is_right_from_the_first_call_of_a_process(split):
    problem = GemmProblem(96, 96, 512, "fp16")
    need_split(problem, split)
    keep(problem, split)
    done = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def launched(call):
    """The names of what a call puts on the GPU, in order; None where nothing can be traced."""
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    events = [event for event in profile.events() if event.device_type is on_gpu]
    return [event.name for event in sorted(events, key=lambda e: e.time_range.start)] or None


@each_split
def test_what_is_timed_is_what_runs(split):
    """Zeroing and reducing of a split product are in both."""
    problem = GemmProblem(64, 64, 8192, "bf16")
    need_split(problem, split)
    keep(problem, split)
    a, b = ints(64, 8192), ints(8192, 64)
    if launched(lambda: torch.zeros(8, device="cuda")) is None:
        pytest.skip("torch's profiler sees no launches here")
    timed = launched(partial(kernels.run, split, problem, a, b, a.new_empty(64, 64)))
    used = launched(partial(matmul, a, b))
    assert plans.plan_of(a, b).launcher is not None
    assert timed == used
    assert launched(partial(matmul, a, b, config=split)) == used


VIEWS = {
    "padded column-major": lambda: (torch.empty_strided((1023, 512), (1, 1088)), (512, 96)),
    "every other": lambda: (torch.empty(64, 256)[:, ::2], (128, 96)),
    "expanded": lambda: (torch.empty(1, 64).expand(128, 64), (64, 96)),
    "transposed": lambda: (torch.empty(64, 128).t(), (64, 96)),
    "one row": lambda: (torch.empty(1, 64).as_strided((1, 64), (7, 1)), (64, 96)),
}


@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize("view", VIEWS)
def test_views(kernel, view):
    like, right = VIEWS[view]()
    storage = torch.zeros(like.untyped_storage().nbytes() // 4, dtype=torch.bfloat16, device="cuda")
    storage.copy_(ints(storage.numel()))
    a, b = storage.as_strided(like.shape, like.stride()), ints(*right)
    expected = (a.double() @ b.double()).bfloat16()
    for ours in (matmul(a, b), forced(a, b, kernel)):
        if ours is not None:
            torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("kernel", OWN)
def test_views_are_not_copied(kernel):
    a, b = ints(1, 2048).expand(4096, 2048), ints(2048, 1).expand(2048, 1024)
    config = config_for(posed(a, b), kernel)
    if config is None or config.padded:
        pytest.skip(f"{kernel} does not take it without padded copies")
    ours = matmul(a, b, config=config)  # compiled by now
    expected = (a[:1].double() @ b[:, :1].double()).bfloat16().expand(4096, 1024)
    assert torch.equal(ours, expected)
    del ours
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours = matmul(a, b, config=config)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    assert extra <= 1.5 * ours.nbytes


def test_lazy_conjugate_and_negative_bits():
    z = torch.tensor([[1 + 2j, 3 - 1j]], device="cuda")
    eye = torch.eye(2, device="cuda")
    assert matmul(z.conj().imag, eye).tolist() == [[-2.0, 1.0]]
    left, right = torch.tensor([[1 + 2j]], device="cuda"), torch.tensor([[3 + 1j]], device="cuda")
    assert matmul(left.conj(), right).tolist() == [[5 - 5j]]
    assert torch.equal(matmul(z, z.mH), torch.matmul(z, z.mH))


@pytest.mark.parametrize("kernel", OWN)
def test_a_lazily_negated_operand_of_an_own_kernel(kernel):
    a, b = ints(64, 64), ints(64, 64)
    config = config_for(dispatch.problem_of(a, b), kernel)
    if config is None:
        pytest.skip(f"{kernel} does not take it")
    expected = (-a.double() @ b.double()).bfloat16()
    assert torch.equal(matmul(torch._neg_view(a), b, config=config), expected)
    assert torch.equal(matmul(a, torch._neg_view(b), config=config), expected)


@pytest.mark.parametrize("kernel", OWN)
def test_misaligned_bases_after_an_aligned_one(kernel):
    buffer, b = ints(8 + 128 * 64, dtype=torch.float16), ints(64, 32, dtype=torch.float16)
    for offset in (0, 1, 2, 8, 3):
        a = buffer[offset : offset + 128 * 64].view(128, 64)
        ours = forced(a, b, kernel)
        if ours is not None:
            assert torch.equal(ours, a @ b)
        parent = torch.full((128 * 32 + 16,), 7.0, dtype=torch.float16, device="cuda")
        out = parent[offset : offset + 128 * 32].view(128, 32)
        try:
            ours = forced(a, b, kernel, out=out)
        except CandidateError:  # chosen for the problem of a fresh out, which this one is not
            ours = None
        if ours is not None:
            assert torch.equal(out, a @ b)
            assert (parent[:offset] == 7).all()
            assert (parent[offset + 128 * 32 :] == 7).all()


@pytest.mark.parametrize("kernel", OWN)
def test_offsets_beyond_32_bits(kernel):
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of free GPU memory")
    base = torch.zeros(3 * 2**30 + 64, dtype=torch.bfloat16, device="cuda")
    a = base.as_strided((4, 64), (2**30, 1))
    a.copy_(ints(4, 64))
    b = ints(64, 32)
    expected = torch.matmul(a.contiguous(), b)
    # torch.matmul(a, b) itself faults here: torch 2.11.0+cu130, H200, 2026-11-30
    ours = forced(a, b, kernel)
    if ours is not None:
        assert torch.equal(ours, expected)
    left = ints(32, 64)
    expected = torch.matmul(left, a.t().contiguous())
    ours = forced(left, a.t(), kernel)
    if ours is not None:
        assert torch.equal(ours, expected)
    assert torch.equal(matmul(left, a.t()), expected)


TALL = 2**20 + 8
PAST = 2**31 // 2056  # a row of 2056 elements, or 2057, that begins or ends beyond 2**31
FAR = {  # extents and layout of a product with a contiguous matrix of more than 2**31 elements
    "a": (TALL, 16, 2056, "nn"),
    "a turned": (TALL, 16, 2056, "tn"),
    "b": (16, TALL, 2056, "nn"),
    "b turned": (16, TALL, 2056, "nt"),
    "b of one row": (1, TALL, 2056, "nn"),
    "b turned of one row": (1, TALL, 2056, "nt"),
    "out": (TALL, 2056, 16, "nt"),
    "padded a": (TALL, 16, 2057, "nt"),
    "padded out": (TALL, 2057, 16, "nn"),
}


def random_ints(rows, cols, letter):
    """Integers in -2..2 in bfloat16, drawn in place."""
    shape = (rows, cols) if letter == "n" else (cols, rows)
    stored = torch.empty(shape, dtype=torch.bfloat16, device="cuda").random_(-2, 3)
    return stored if letter == "n" else stored.t()


@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize("case", FAR)
def test_more_elements_than_32_bits_count(case, kernel):
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    m, n, k, layout = FAR[case]
    a, b = random_ints(m, k, layout[0]), random_ints(k, n, layout[1])
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    if forced(a, b, kernel, out=out) is None:
        assert kernel != "pointer"
        pytest.skip(f"{kernel} does not take it")
    few = torch.tensor([0, 1, PAST - 1, PAST, PAST + 1, TALL - 2, TALL - 1], device="cuda")
    if m == TALL:
        assert torch.equal(out[few], (a[few].double() @ b.double()).bfloat16())
    else:
        assert torch.equal(out[:, few], (a.double() @ b[:, few].double()).bfloat16())
    assert not out.isnan().any()


MANY = 256 * 70000  # rows or columns of more tiles than a grid's second axis holds, 65535


@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize(("m", "n"), [(MANY, 8), (8, MANY), (1, MANY)])
def test_tiles_beyond_a_grid_axis(m, n, kernel):
    a, b = random_ints(m, 16, "n"), random_ints(16, n, "n")
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    if forced(a, b, kernel, out=out) is None:
        assert kernel != "pointer"
        pytest.skip(f"{kernel} does not take it")
    assert torch.equal(out, torch.matmul(a, b))
    assert torch.ones(4, device="cuda").sum().item() == 4


def test_batches_beyond_a_grid_axis():
    for left, right in (
        ((65536, 8, 8), (65536, 8, 8)),
        ((65537, 2, 4), (65537, 4, 1)),
        ((70000, 1, 16), (16, 8)),
    ):
        a, b = ints(*left), ints(*right)
        expected = torch.matmul(a, b)
        assert torch.equal(matmul(a, b), expected)
        out = torch.full_like(expected, float("nan"))
        assert torch.equal(matmul(a, b, out=out), expected)
    assert torch.ones(4, device="cuda").sum().item() == 4


@pytest.mark.parametrize("left", [torch.int8, torch.int64, torch.bool, torch.float16])
def test_other_dtypes_are_torchs(left):
    right = torch.float32 if left is torch.float16 else left
    a, b = (torch.full(s, 100, device="cuda").to(t) for s, t in (((2, 3), left), ((3, 2), right)))
    outcomes = []
    for multiply in (matmul, torch.matmul):
        try:
            outcomes.append(multiply(a, b).tolist())
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_autocast():
    a, b = (torch.randn(s, device="cuda", requires_grad=True) for s in ((8, 64), (64, 16)))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        product = matmul(a, b)
        assert matmul(a.bfloat16(), b).dtype is torch.bfloat16
        double = a.detach().double()
        assert matmul(double, b.detach().double()).dtype is torch.float64
        outcomes = []
        for multiply in (matmul, torch.matmul):
            try:
                outcomes.append(multiply(double, b).dtype)
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
    assert product.dtype is torch.bfloat16
    (product.float() * 1e6).sum().backward()
    assert a.grad.dtype is torch.float32
    assert a.grad.isfinite().all()


OUTS = {  # shapes of a, b, and the out
    "dtype": ((2, 3), (3, 4), lambda: torch.full((2, 4), 7.0, dtype=torch.float64, device="cuda")),
    "shape": ((2, 3), (3, 4), lambda: torch.full((3, 3), 7.0, device="cuda")),
    "empty": ((2, 3), (3, 4), lambda: torch.empty(0, device="cuda")),
    "fits": ((2, 3), (3, 4), lambda: torch.full((2, 4), float("nan"), device="cuda")),
    "transposed": ((2, 3), (3, 4), lambda: torch.full((4, 2), float("nan"), device="cuda").t()),
    "batched": ((2, 4, 3), (3, 5), lambda: torch.full((2, 4, 5), float("nan"), device="cuda")),
    "with gradients": ((2, 3), (3, 4), lambda: torch.zeros(2, 4, device="cuda").requires_grad_()),
}


def outcome(multiply, a, b, out):
    """What it returned or raised, its warnings, and out afterwards."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = multiply(a, b, out=out) is out
        except RuntimeError as error:
            result = str(error)
    return result, [str(item.message) for item in caught], out.shape, out.tolist()


@pytest.mark.parametrize("case", OUTS)
def test_out_follows_torchs_rules(case):
    left, right, make = OUTS[case]
    a, b = ints(*left, dtype=torch.float32), ints(*right, dtype=torch.float32)
    for _ in range(2):
        assert repr(outcome(matmul, a, b, make())) == repr(outcome(torch.matmul, a, b, make()))


SHAPES = [
    ((5,), (5,)), ((5,), (5, 7)), ((7, 5), (5,)), ((5,), (2, 5, 7)), ((2, 7, 5), (5,)),
    ((5, 1, 2, 3), (4, 3, 6)), ((2, 3), (8, 3, 4)), ((2, 4, 8), (8, 16)),
]  # fmt: skip


@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_shapes_are_torchs(left, right, kernel):
    a, b = ints(*left), ints(*right)
    theirs = torch.matmul(a, b)
    for product in (matmul(a, b), forced(a, b, kernel)):
        assert product is None or torch.equal(product, theirs)


def test_an_operand_without_dimensions_fails_as_torchs_does():
    messages = []
    for multiply in (matmul, torch.matmul):
        with pytest.raises(RuntimeError) as error:
            multiply(ints(), ints(5))
        messages.append(str(error.value))
    assert messages[0] == messages[1]


# Dispatch on a GPU


@pytest.mark.parametrize("text", ["64x128x256:bf16:nn", "96x128x64:fp16:nt", "1x256x512:bf16:nt"])
def test_a_stored_entry_is_found_again_by_tensors(text):
    problem = GemmProblem.parse(text)
    config = tune(problem)
    a = ints(problem.m, problem.k, dtype=getattr(torch, TORCH_NAMES[problem.dtype]))
    b = ints(problem.n, problem.k, dtype=a.dtype).mT
    b = b if problem.layout[1] == "t" else b.contiguous()
    assert explain(a, b).config == config
    assert_close(matmul(a, b), a, b)
    assert plans.plan_of(a, b).launcher is not None


STATES = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cuda", dtype=torch.float16),
    "another stream": lambda: torch.cuda.stream(torch.cuda.Stream()),
}


@pytest.mark.parametrize("state", STATES)
def test_known_operands_in_another_state(state):
    tune(GemmProblem(64, 128, 256, "bf16", "nn"))
    a, b = ints(64, 256), ints(256, 128)
    exact = a.double() @ b.double()
    for _ in range(2):
        matmul(a, b)
    assert recall.recall(recall.MATMUL, a, b) is not None
    torch.cuda.synchronize()
    for _ in range(2):
        with STATES[state]():
            known, reason = recall.recall(recall.MATMUL, a, b), why_torch(a, b)
            assert known is None or reason is None
            product, theirs = matmul(a, b), torch.matmul(a, b)
            assert product.dtype is theirs.dtype
            assert product.is_inference() == theirs.is_inference()
        torch.cuda.synchronize()
        assert torch.equal(product, exact.to(product.dtype))


def test_sixteen_threads_on_a_new_shape(at_once):
    tune(GemmProblem(64, 128, 256, "bf16", "nn"))
    a, b = ints(64, 256), ints(256, 128)
    expected = (a.double() @ b.double()).bfloat16()
    products = at_once(lambda: matmul(a, b))
    assert len(products) == 16
    assert all(torch.equal(product, expected) for product in products)
    assert plans.plan_of(a, b).launcher is not None


def test_a_side_stream():
    tune(GemmProblem(64, 128, 256, "bf16", "nn"))
    a, b = ints(64, 256), ints(256, 128)
    matmul(a, b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a.fill_(1)
        product = matmul(a, b)
        assert torch.cuda.current_stream() == stream
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(product, torch.ones_like(a) @ b)
    assert plans.plan_of(a, b).launcher is not None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one():
    tune(GemmProblem(64, 128, 256, "bf16", "nn"))
    a, b = ints(64, 256, device="cuda:1"), ints(256, 128, device="cuda:1")
    product = matmul(a, b)
    assert product.device == a.device
    assert plans.plan_of(a, b).launcher is not None
    assert torch.equal(product, (a.double() @ b.double()).bfloat16())
    assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match="cuda:0"):
        matmul(a, b.to("cuda:0"))
    with pytest.raises(RuntimeError):
        matmul(a, b.cpu())


def captured(a, b):
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.cuda.graph(graph):
            product = matmul(a, b)
    for _ in range(10):
        a.copy_(ints(*a.shape))
        graph.replay()
        assert torch.equal(product, (a.double() @ b.double()).bfloat16())


@pytest.mark.parametrize("prepared", [False, True])
def test_capture_of_a_tuned_problem(prepared, capfd, monkeypatch):
    problem = GemmProblem(64, 128, 256, "bf16", "nn")
    tune(problem)
    torch.matmul(ints(8, 8), ints(8, 8))  # cuBLAS makes its handle outside of captures
    ran = []
    bind = dispatch.bind_kernel

    class Counted:
        direct = False

        def __init__(self, *args):
            self.launcher = bind(*args)

        def __call__(self, *operands):
            ran.append(1)
            self.launcher(*operands)

    monkeypatch.setattr(dispatch, "bind_kernel", Counted)
    if prepared:
        assert [decision.uses_torch for decision in prepare([problem])] == [False]
    ran.clear()
    captured(ints(64, 256), ints(256, 128))
    assert len(ran) == (1 if prepared else 0)
    matmul(ints(64, 256), ints(256, 128))  # afterwards it is served as ever
    assert len(ran) == (2 if prepared else 1)
    assert capfd.readouterr() == ("", "")


@each_split
def test_capture_of_a_split_product(split):
    problem = GemmProblem(96, 96, 512, "bf16")
    need_split(problem, split)
    keep(problem, split)
    torch.matmul(ints(8, 8), ints(8, 8))
    assert [decision.config for decision in prepare([problem])] == [split]
    a, b = ints(96, 512), ints(512, 96)
    assert plans.plan_of(a, b).launcher is not None
    captured(a, b)


def test_capture_of_a_miss_reads_and_writes_nothing(tmp_path, monkeypatch):
    torch.matmul(ints(8, 8), ints(8, 8))
    monkeypatch.setattr(dispatch.Dispatcher, "decide", lambda *args: pytest.fail("decided"))
    captured(ints(64, 256), ints(256, 128))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    for m in (17, 33, 64):
        tune(GemmProblem(m, 128, 256, "bf16", "tn"))
    b = ints(256, 128)
    f = torch.compile(lambda a, b: matmul(a.t(), b) + 1, fullgraph=True, mode=mode)
    for m in (17, 33, 64, 1, 4096):
        a = ints(256, m)
        for _ in range(3):
            assert torch.equal(f(a, b), (a.t().double() @ b.double()).bfloat16() + 1)


def test_compiled_training_step():
    tune(GemmProblem(64, 128, 256, "bf16", "nt"))
    weight = torch.nn.Parameter(ints(128, 256))
    x = ints(64, 256)
    f = torch.compile(lambda x: matmul(x, weight.mT).float().sum(), fullgraph=True)
    f(x).backward()
    assert torch.equal(weight.grad, x.float().sum(0).expand(128, 256).bfloat16())


@pytest.mark.parametrize("kernel", OWN)
def test_gradients_of_an_own_kernel(kernel):
    a, b = (ints(*s).requires_grad_() for s in ((32, 64), (64, 48)))
    ours = forced(a, b, kernel)
    if ours is None:
        pytest.skip(f"{kernel} does not take it")
    ours.sum().backward()
    assert torch.equal(a.grad, torch.ones_like(ours) @ b.detach().mT)
    assert torch.equal(b.grad, a.detach().mT @ torch.ones_like(ours))


@pytest.mark.parametrize("kernel", OWN)
def test_expanded_and_sliced_gradients_of_an_own_kernel(kernel):
    dtypes = [torch.float32, torch.bfloat16]
    for a, b, c in ([ints(*s, dtype=t) for s in ((32, 64), (64, 48), (32, 64))] for t in dtypes):
        if forced(a, b, kernel) is None:
            continue
        found = []
        for multiply in (partial(forced, kernel=kernel), torch.matmul):
            x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
            joined = torch.cat([multiply(x, y), multiply(c, y)], 1)
            (joined.float()[:, ::2].clamp(-2, 2).sum() + multiply(x, y).float().sum()).backward()
            found.append((x.grad, y.grad))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


def test_a_fork_before_cuda_works():
    code = (
        "import os, autoswizzle, autoswizzle.ops, torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "if os.fork() == 0:\n"
        "    a = torch.ones(8, 8, device='cuda')\n"
        "    os._exit(0 if torch.equal(autoswizzle.matmul(a, a), a * 8) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
