"""ops.py on the CPU: torch's contract, and our path with a stand-in for the kernels.

fake_gpu makes CPU tensors count as a GPU's; `tuned` puts an entry, so that they reach a kernel.
"""

import copy
import sys
import time
import warnings
from dataclasses import replace

import pytest
import torch

import autoswizzle
from autoswizzle import dispatch, operands, plans, tuning
from autoswizzle.cache.store import shared_store
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.errors import CacheError, ConfigError, LaunchError
from autoswizzle.layers import linear
from autoswizzle.operands import problem_of
from autoswizzle.ops import matmul, prepare, scratch_operands
from autoswizzle.problem import ITEMSIZE, LAYOUTS, GemmProblem
from autoswizzle.settings import ON_MISS, settings
from autoswizzle.toolchain import triton_version

SMALL = GemmConfig(block_m=16, block_n=32)


def ints(*shape, dtype=torch.float32):
    return torch.randint(-2, 3, shape).to(dtype)


def as_torch(call, *args, **kwargs):
    """What call does: its result or its error, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # compared, whatever it is
            result = type(error), str(error)
    return result, [(w.category, str(w.message)) for w in caught]


def assert_same(ours, theirs):
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        if not theirs.is_sparse:
            assert ours.stride() == theirs.stride()
    else:
        assert ours == theirs


# torch's contract


SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 7)),
    ((7, 5), (5,)),
    ((5,), (2, 5, 7)),
    ((2, 7, 5), (5,)),
    ((5, 1, 2, 3), (4, 3, 6)),
    ((2, 3), (8, 3, 4)),
    ((2, 4, 3), (3, 5)),
    ((2, 2, 4, 3), (3, 5)),
    ((1, 1), (1, 1)),
    ((), (5,)),
    ((5,), ()),
    ((2, 3), (4, 5)),
    ((2, 2, 3), (3, 3, 4)),
    ((3, 2, 0), (3, 0, 3)),
    ((3, 0, 0), (0, 0)),
    ((0, 64), (64, 8)),
    ((4, 0), (0, 6)),
    ((0, 2, 3), (3, 4)),
    ((1, 2, 3), (0, 3, 4)),
    ((0,), (0,)),
    ((2, 0, 3), (3, 4)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_shapes_and_errors_are_torchs(tuned, left, right, grad):
    a, b = ints(*left).requires_grad_(grad), ints(*right).requires_grad_(grad)
    x, y = (t.detach().clone().requires_grad_(grad) for t in (a, b))
    (ours, warned), (theirs, expected) = as_torch(matmul, a, b), as_torch(torch.matmul, x, y)
    assert_same(ours, theirs)
    assert warned == expected
    if grad and isinstance(theirs, torch.Tensor):
        ours.sum().backward()
        theirs.sum().backward()
        assert_same(a.grad, x.grad)
        assert_same(b.grad, y.grad)


@pytest.mark.parametrize(("left", "right"), [s for s in SHAPES if 0 in (*s[0], *s[1])], ids=str)
def test_empty_extents_launch_nothing(tuned, left, right):
    assert_same(matmul(ints(*left), ints(*right)), torch.matmul(ints(*left), ints(*right)))
    assert not tuned.calls


def test_empty_extents_are_no_miss(fake_gpu, fresh, monkeypatch):  # N01
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "error")
    for left, right in SHAPES:
        if 0 in (*left, *right):
            matmul(ints(*left), ints(*right))
            matmul(ints(*left).requires_grad_(), ints(*right)).sum().backward()
    assert not fresh.exists()  # where misses are noted


PAIRS = [
    (torch.float16, torch.float32),
    (torch.float64, torch.float32),
    (torch.float64, torch.float64),
    (torch.int8, torch.int8),
    (torch.int64, torch.int64),
    (torch.bool, torch.bool),
    (torch.complex64, torch.complex64),
    (torch.float8_e4m3fn, torch.float8_e4m3fn),
    (torch.float32, torch.complex64),
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_other_dtypes_are_torchs(tuned, left, right):
    a, b = ints(2, 3).abs().to(left), ints(3, 4).abs().to(right)
    (ours, _), (theirs, _) = as_torch(matmul, a, b), as_torch(torch.matmul, a, b)
    assert_same(ours, theirs)
    assert not tuned.calls


@pytest.mark.parametrize("bad", [None, 3, [[1.0]], "a"])
def test_other_arguments_fail_as_torchs_do(bad):
    a = ints(1, 1)
    for pair in ((a, bad), (bad, a)):
        ours, theirs = as_torch(matmul, *pair)[0], as_torch(torch.matmul, *pair)[0]
        assert ours[0] is theirs[0] is TypeError


VIEWS = {
    "transposed": lambda: (ints(8, 4).t(), ints(6, 8).t()),
    "expanded rows": lambda: (ints(1, 8).expand(4, 8), ints(8, 6)),
    "expanded columns": lambda: (ints(4, 8), ints(8, 1).expand(8, 6)),
    "every other": lambda: (ints(4, 16)[:, ::2], ints(16, 6)[::2]),
    "padded": lambda: (ints(4, 12)[:, :8], ints(8, 9)[:, 2:8]),
    "unit strides": lambda: (ints(1, 8).as_strided((1, 8), (3, 1)), ints(8, 6)),
    "batch expanded": lambda: (ints(1, 4, 8).expand(3, 4, 8), ints(8, 6)),
    "batch permuted": lambda: (ints(4, 3, 8).transpose(0, 1), ints(8, 6)),
    "overlapping": lambda: (ints(20).as_strided((4, 8), (2, 1)), ints(8, 6)),
    "offset": lambda: (ints(33)[1:].view(4, 8), ints(8, 6)),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("grad", [False, True])
def test_views_equal_torch(tuned, make, grad):
    a, b = make()
    before = a.clone(), b.clone()
    a, b = (t.detach().requires_grad_(grad) for t in (a, b))
    ours = matmul(a, b)
    theirs = torch.matmul(before[0], before[1])
    assert torch.equal(ours, theirs)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_lazy_conjugate_and_negative_bits(tuned):
    z = torch.tensor([[1 + 2j, 3 - 1j]])
    assert torch.equal(matmul(z.conj().imag, torch.eye(2)), torch.tensor([[-2.0, 1.0]]))
    product = matmul(torch.tensor([[1 + 2j]]).conj(), torch.tensor([[3 + 1j]]))
    assert torch.equal(product, torch.tensor([[5 - 5j]]))
    assert torch.equal(matmul(z, z.mH), torch.matmul(z, z.mH))
    assert not tuned.calls


@pytest.mark.parametrize("kind", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_other_layouts_are_torchs(tuned, kind):
    a, b = ints(4, 4), ints(4, 4)
    assert torch.equal(matmul(kind(a), kind(b)).to_dense(), torch.matmul(a, b))
    assert not tuned.calls


def test_nested_tensors_are_torchs(tuned):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = torch.nested.nested_tensor([ints(2, 3), ints(4, 3)])
        b = torch.nested.nested_tensor([ints(3, 2), ints(3, 5)])
    for ours, x, y in zip(matmul(a, b).unbind(), a.unbind(), b.unbind(), strict=True):
        assert torch.equal(ours, x @ y)
    assert not tuned.calls


def test_subclasses_see_torch_matmul(tuned):
    class Traced(torch.Tensor):
        seen = ()

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Traced.seen += (func,)
            return super().__torch_function__(func, types, args, kwargs)

    a = ints(4, 4).as_subclass(Traced)
    assert type(matmul(a, ints(4, 4))) is Traced
    assert type(matmul(ints(4, 4), a)) is Traced
    assert Traced.seen.count(torch.matmul) == 2
    assert not tuned.calls


def test_a_foreign_operand_gets_the_call_as_torch_would_make_it():
    class Foreign:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func, len(args), kwargs

    for args in ((Foreign(), ints(4, 4)), (ints(4, 4), Foreign())):
        assert matmul(*args) == torch.matmul(*args)
        out = torch.empty(4, 4)
        assert matmul(*args, out=out) == torch.matmul(*args, out=out)


def test_parameters_are_plain(tuned):
    matmul(ints(4, 4), torch.nn.Parameter(ints(4, 4)))
    assert len(tuned.calls) == 1


def test_vmap_and_functional_transforms(tuned):
    a, b = ints(3, 4, 8), ints(8, 5)
    assert torch.equal(torch.vmap(matmul, (0, None))(a, b), torch.matmul(a, b))
    assert torch.equal(torch.vmap(lambda x: matmul(b.mT, x))(a.mT), torch.matmul(b.mT, a.mT))
    grad = torch.func.grad(lambda x: matmul(x, b).sum())(a[0])
    assert torch.equal(grad, torch.ones(4, 5) @ b.mT)
    p, q = ints(4, 8).requires_grad_(), ints(8, 5)
    scaled = torch.func.grad(lambda x: x * matmul(p, q).sum())(torch.tensor(2.0))
    assert torch.equal(scaled, (p @ q).sum())
    _, tangent = torch.func.jvp(lambda x: matmul(x, b), (a[0],), (a[1],))
    assert torch.equal(tangent, a[1] @ b)
    assert not tuned.calls


def test_dual_numbers(tuned):
    from torch.autograd import forward_ad

    a, b = ints(4, 8), ints(8, 5)
    with forward_ad.dual_level():
        product = matmul(forward_ad.make_dual(a, torch.ones_like(a)), b)
        assert torch.equal(forward_ad.unpack_dual(product).tangent, torch.ones_like(a) @ b)
    assert not tuned.calls


def test_dispatch_modes_see_the_product(tuned):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        matmul(ints(4, 8), ints(8, 5))
    assert counter.get_total_flops() == 2 * 4 * 8 * 5
    assert not tuned.calls


def test_function_modes_see_torch_matmul(tuned):
    from torch.overrides import TorchFunctionMode

    class Seen(TorchFunctionMode):
        functions = ()

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Seen.functions += (func,)
            return func(*args, **(kwargs or {}))

    with Seen():
        matmul(ints(4, 8), ints(8, 5))
    assert torch.matmul in Seen.functions
    assert not tuned.calls


def test_a_default_device_does_not_hide_our_path(tuned):
    with torch.device("cpu"):
        matmul(ints(4, 8), ints(8, 5))
    assert len(tuned.calls) == 1


def test_jit_tracing_records_the_product(tuned):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operands = (ints(4, 8), ints(8, 5))
        traced = torch.jit.trace(lambda x, y: matmul(x, y), operands, check_trace=False)
    assert "matmul" in str(traced.graph)
    assert not tuned.calls


def test_meta_and_fake_tensors_do_no_work(tuned):
    from torch._subclasses.fake_tensor import FakeTensorMode

    product = matmul(torch.empty(4, 8, device="meta"), torch.empty(8, 5, device="meta"))
    assert (product.device.type, product.shape) == ("meta", (4, 5))
    with FakeTensorMode():
        product = matmul(torch.empty(4, 8), torch.empty(8, 5))
    assert (product.shape, product.stride()) == ((4, 5), (5, 1))
    assert not tuned.calls


def test_mixed_devices_fail_as_torch_does(tuned):
    a, b = torch.empty(4, 8, device="meta"), ints(8, 5)
    ours, theirs = as_torch(matmul, a, b)[0], as_torch(torch.matmul, a, b)[0]
    assert getattr(ours, "device", ours) == getattr(theirs, "device", theirs)
    assert not tuned.calls


# Autocast


@pytest.fixture
def autocast():
    """Autocast for the device that counts as a GPU."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def test_autocast_that_changes_the_dtype_is_torchs(tuned, autocast):
    matmul(ints(4, 8), ints(8, 5))
    matmul(ints(4, 8, dtype=torch.float16), ints(8, 5, dtype=torch.float16))
    assert not tuned.calls
    matmul(ints(4, 8, dtype=torch.bfloat16), ints(8, 5, dtype=torch.bfloat16))
    assert len(tuned.calls) == 1


def test_a_backward_after_autocast_runs_in_the_forwards_dtype(tuned):  # N02
    a, b = (ints(*s, dtype=torch.bfloat16).requires_grad_() for s in ((8, 16), (16, 8)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = matmul(a, b)
    (product.float() * 1e6).sum().backward()  # beyond float16
    assert tuned.problems == ["8x8x16:bf16:nn", "8x16x8:bf16:nt", "16x8x8:bf16:tn"]
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


def test_cpu_autocast_is_torchs():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = ints(8, 64).requires_grad_(), ints(64, 16).requires_grad_()
        product = matmul(a, b)
        assert product.dtype == torch.bfloat16
        assert matmul(a.bfloat16(), b).dtype == torch.bfloat16
        assert matmul(a.double(), b.double()).dtype == torch.float64
        ours, theirs = (as_torch(f, a.double(), b)[0] for f in (matmul, torch.matmul))
        assert ours == theirs
    (product.float() * 1e6).sum().backward()
    assert a.grad.dtype == torch.float32
    assert a.grad.isfinite().all()


# fp32 precision


@pytest.fixture
def precision():
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")


def test_fp32_precision_follows_every_api(tuned, precision):
    def posed(dtype=torch.float32):
        matmul(ints(4, 8, dtype=dtype), ints(8, 5, dtype=dtype))
        return tuned.calls[-1][1].precision

    assert posed() == "ieee"
    torch.set_float32_matmul_precision("high")
    assert posed() == "tf32"
    assert posed(torch.float16) == "ieee"
    torch.set_float32_matmul_precision("highest")
    assert posed() == "ieee"
    precision.allow_tf32 = True
    assert posed() == "tf32"
    precision.allow_tf32 = False
    assert posed() == "ieee"
    precision.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix"):
        torch.get_float32_matmul_precision()  # the API that raises when mixed
    assert posed() == "tf32"
    precision.fp32_precision = "ieee"
    assert posed() == "ieee"


# out=


def out_cases():
    f32 = torch.float32
    yield "dtype", (2, 3), (3, 4), lambda: torch.full((2, 4), 7.0, dtype=torch.float64)
    yield "shape", (2, 3), (3, 4), lambda: torch.full((3, 3), 7.0)
    yield "empty", (2, 3), (3, 4), lambda: torch.empty(0)
    yield "fits", (2, 3), (3, 4), lambda: torch.full((2, 4), float("nan"), dtype=f32)
    yield "transposed", (2, 3), (3, 4), lambda: torch.full((4, 2), float("nan")).t()
    yield "sliced", (2, 3), (3, 4), lambda: torch.full((2, 9), float("nan"))[:, :4]
    yield "batched", (2, 4, 3), (3, 5), lambda: torch.full((2, 4, 5), float("nan"))
    yield "batched both", (2, 4, 3), (2, 3, 5), lambda: torch.full((2, 4, 5), float("nan"))
    yield "expanded", (2, 3), (3, 4), lambda: torch.zeros(1, 4).expand(2, 4)
    yield "inner mismatch", (2, 3), (4, 4), lambda: torch.zeros(2, 4)
    yield "vector", (3,), (3, 4), lambda: torch.zeros(4)
    yield "zero extent", (2, 0), (0, 4), lambda: torch.full((2, 4), float("nan"))


@pytest.mark.parametrize(("left", "right", "make"), [c[1:] for c in out_cases()],
                         ids=[c[0] for c in out_cases()])  # fmt: skip
def test_out_follows_torchs_rules(tuned, left, right, make):
    a, b, mine, its = ints(*left), ints(*right), make(), make()
    (ours, warned) = as_torch(matmul, a, b, out=mine)
    (theirs, expected) = as_torch(torch.matmul, a, b, out=its)
    assert_same(ours, theirs)
    assert warned == expected
    assert_same(mine, its)
    if isinstance(ours, torch.Tensor):
        assert ours is mine


def test_a_fitting_out_is_written_by_our_kernel(tuned):
    a, b = ints(2, 3), ints(3, 4)
    parent = torch.full((20,), 9.0)
    out = parent[5:13].view(2, 4)
    version = out._version
    assert matmul(a, b, out=out) is out
    assert torch.equal(out, a @ b)
    assert torch.equal(parent[:5], torch.full((5,), 9.0))
    assert torch.equal(parent[13:], torch.full((7,), 9.0))
    assert out._version > version
    [(_, problem)] = tuned.calls
    assert problem.aligned is False


@pytest.mark.parametrize("who", ["a", "b", "out"])
def test_out_with_gradients_fails_as_torch_does(tuned, who):
    tensors = {"a": ints(2, 3), "b": ints(3, 4), "out": torch.full((2, 4), 7.0)}
    tensors[who].requires_grad_()
    theirs = as_torch(torch.matmul, tensors["a"], tensors["b"], out=tensors["out"])[0]
    ours = as_torch(matmul, tensors["a"], tensors["b"], out=tensors["out"])[0]
    assert ours == theirs
    assert ours[0] is RuntimeError
    assert "automatic differentiation" in ours[1]
    assert torch.equal(tensors["out"].detach(), torch.full((2, 4), 7.0))
    assert not tuned.calls


def test_an_overlapping_out_is_torchs(tuned):
    a = ints(4, 4)
    theirs = as_torch(torch.matmul, a.clone(), ints(4, 4), out=a.clone())[0]
    assert isinstance(theirs, torch.Tensor)
    memory = ints(8, 4)
    ours = as_torch(matmul, memory[:4], ints(4, 4), out=memory[2:6])[0]
    theirs = as_torch(torch.matmul, memory[:4], ints(4, 4), out=memory[2:6])[0]
    assert type(ours) is type(theirs)
    assert not tuned.calls


# Our path


def test_a_tuned_problem_runs_on_the_kernel_of_its_entry(fake_gpu, entry_for):
    config = GemmConfig(block_m=64, swizzle="hilbert")
    problem = GemmProblem(32, 64, 128, "fp32", "nt")
    dispatcher().store.put(entry_for(problem, config=config))
    a, b = ints(32, 128), ints(64, 128).t()
    for _ in range(3):
        assert torch.equal(matmul(a, b), a @ b)
    assert fake_gpu.calls == [(config, problem)] * 3
    assert torch.equal(matmul(a[:16], b), a[:16] @ b)
    assert len(fake_gpu.calls) == 3


def test_sixteen_first_calls_load_one_kernel(tuned, monkeypatch, at_once):
    bound = []
    a, b = ints(4, 16), ints(16, 8)

    def bind(*args):
        bound.append(1)
        time.sleep(0.05)
        return tuned(*args)

    monkeypatch.setattr(dispatch, "bind_kernel", bind)
    products = at_once(lambda: matmul(a, b))
    assert len(products) == 16
    assert all(torch.equal(product, a @ b) for product in products)
    assert bound == [1]


def test_a_torch_decision_and_a_miss_are_torch(fake_gpu, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=TORCH))
    a, b = ints(4, 16), ints(16, 8)
    assert torch.equal(matmul(a, b), a @ b)
    assert torch.equal(matmul(b.mT, a.mT), (a @ b).mT)
    assert not fake_gpu.calls


def test_disabled_is_torch(tuned, monkeypatch):
    monkeypatch.setenv("AUTOSWIZZLE_DISABLE", "1")
    matmul(ints(4, 16), ints(16, 8))
    assert not tuned.calls


@pytest.mark.parametrize("make", [lambda: ints(4, 32)[:, ::2], lambda: ints(1, 16).expand(4, 16)])
def test_irregular_strides_are_torchs(tuned, make):
    a, b = make(), ints(16, 8)
    assert torch.equal(matmul(a, b), a @ b)
    assert not tuned.calls


def test_a_vector_is_one_row(tuned):
    a, b = ints(16).requires_grad_(), ints(16, 8)
    product = matmul(a, b)
    assert torch.equal(product, torch.matmul(a, b))
    product.backward(torch.ones(8))
    assert torch.equal(a.grad, b.sum(1))
    assert tuned.problems == ["1x8x16:fp32:nn", "1x16x8:fp32:nt"]


def test_a_batch_folds_into_m(tuned):
    a, b = ints(2, 3, 16), ints(16, 8)
    product = matmul(a, b)
    assert torch.equal(product, torch.matmul(a, b))
    assert product.is_contiguous()
    assert tuned.problems == ["6x8x16:fp32:nn"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("extents", [(64, 128, 256), (3, 5, 7), (8, 16, 24)])
def test_contiguous_operands_pose_the_problem_that_tuning_keys(dtype, layout, extents):
    problem = GemmProblem(*extents, dtype, layout)
    a, b = scratch_operands(problem, torch.device("cpu"))
    assert problem_of(a, b) == problem


@pytest.mark.parametrize("extents", [(1, 8, 16), (8, 1, 16), (16, 8, 1), (1, 1, 1)])
def test_a_single_row_or_column_counts_as_row_major(extents):
    problem = GemmProblem(*extents, "fp16", "nn")
    assert problem_of(*scratch_operands(problem, torch.device("cpu"))) == problem


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("extents", [(3, 8, 7), (63, 128, 65), (5, 16, 16)])
def test_operands_with_padded_rows_pose_their_problem(extents, dtype, layout):
    problem = GemmProblem(*extents, dtype, layout, aligned=True)
    assert problem_of(*scratch_operands(problem, torch.device("cpu"))) == problem


@pytest.mark.parametrize("offset", [0, 1, 2, 8, 3])
def test_alignment_counts_base_and_outer_stride(offset):
    buffer = torch.zeros(8 + 128 * 64, dtype=torch.float16)
    a, b = buffer[offset : offset + 128 * 64].view(128, 64), torch.zeros(64, 32).half()
    assert problem_of(a, b).aligned is (offset % 8 == 0)
    assert problem_of(torch.zeros(4, 71).half()[:, :64], b).aligned is False
    assert problem_of(torch.zeros(1, 71).half()[:, :64], b).aligned is True
    unaligned = GemmProblem(128, 32, 64, "fp16", aligned=False)
    assert problem_of(*scratch_operands(unaligned, torch.device("cpu"))) == unaligned


def test_an_aligned_plan_is_not_reused_for_a_misaligned_operand(tuned):
    buffer, b = ints(8 + 4 * 8, dtype=torch.float16), ints(8, 8, dtype=torch.float16)
    for offset in (0, 1, 8, 3):
        a = buffer[offset : offset + 32].view(4, 8)
        assert torch.equal(matmul(a, b), a @ b)
    assert [problem.aligned for _, problem in tuned.calls] == [True, False, True, False]


def test_deterministic_mode_keeps_the_kernels(tuned):
    """All add up in one order: see kernels/wgmma_split.py and tests/gpu/wgmma_cases.py."""
    a, b = ints(4, 16), ints(16, 8)
    torch.use_deterministic_algorithms(True)
    try:
        for calls in (1, 2):
            assert torch.equal(matmul(a, b), a @ b)
            assert len(tuned.calls) == calls
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_kernel_that_fails_is_torch_from_then_on(tuned, caplog):
    a, b = ints(4, 16), ints(16, 8)
    tuned.error = LaunchError("out of shared memory")
    for _ in range(3):
        assert torch.equal(matmul(a, b), a @ b)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "out of shared memory" in caplog.text


@pytest.mark.parametrize("direct", [False, True], ids=["copies", "partial sums"])
def test_a_kernel_without_memory_of_its_own_is_torch_this_time(tuned, monkeypatch, direct):
    def bound(*operands):
        launcher = tuned(*operands)
        launcher.direct = direct
        return launcher

    monkeypatch.setattr(dispatch, "bind_kernel", bound)
    a, b = ints(4, 16), ints(16, 8)
    out = torch.full((4, 8), float("nan"))
    for calls in (1, 2):  # at its first launch and at a later one
        tuned.error = torch.OutOfMemoryError("tried to allocate 32 bytes")
        assert torch.equal(matmul(a, b), a @ b)
        assert torch.equal(matmul(a, b, out=out), a @ b)
        assert len(tuned.calls) == 2 * (calls - 1)
        tuned.error = None
        assert torch.equal(matmul(a, b), a @ b)
        assert torch.equal(matmul(a, b, out=out.fill_(0)), a @ b)
        assert len(tuned.calls) == 2 * calls
    tuned.error = torch.OutOfMemoryError("tried to allocate 32 bytes")
    with pytest.raises(torch.OutOfMemoryError):
        matmul(a, b, config=SMALL)


# config=


def test_a_given_config_is_run(fake_gpu):
    a, b = ints(4, 16), ints(16, 8)
    config = GemmConfig(block_m=32, swizzle="morton")
    assert torch.equal(matmul(a, b, config=config), a @ b)
    out = torch.full((4, 8), float("nan"))
    assert torch.equal(matmul(a, b, config=config, out=out), a @ b)
    assert [config for config, _ in fake_gpu.calls] == [config] * 2
    matmul(a, b, config=TORCH)
    assert len(fake_gpu.calls) == 2


def test_a_given_config_takes_any_strides(fake_gpu):
    a, b = ints(4, 32)[:, ::2], ints(16, 1).expand(16, 8)
    assert torch.equal(matmul(a, b, config=SMALL), a @ b)
    assert fake_gpu.problems == ["4x8x16:fp32:nn:unaligned"]


def test_an_illegal_config_is_named(fake_gpu):
    a, b = ints(4, 16), ints(16, 8)
    with pytest.raises(ConfigError, match="num_warps must be"):
        matmul(a, b, config=GemmConfig(num_warps=3))
    with pytest.raises(ConfigError, match="config must be a GemmConfig, got 'fast'"):
        matmul(a, b, config="fast")
    with pytest.raises(ConfigError, match="config must be a GemmConfig"):
        matmul(a, b, config={"kernel": "pointer"})


def test_a_given_config_that_fails_is_an_error(fake_gpu):
    fake_gpu.error = LaunchError("no")
    with pytest.raises(LaunchError):
        matmul(ints(4, 16), ints(16, 8), config=SMALL)


# Gradients


def grads(multiply, a, b, seed):
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    return torch.autograd.grad(multiply(a, b), (a, b), seed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_gradients_equal_torchs_and_are_tuned(tuned, layout, lead):
    a, b = ints(6, 16), ints(16, 8)
    if lead:
        a = ints(*lead, 4, 16)
    elif layout[0] == "t":
        a = a.mT.contiguous().mT
    if layout[1] == "t":
        b = b.mT.contiguous().mT
    seed = ints(*lead, 4, 8) if lead else ints(6, 8)
    ours, theirs = grads(matmul, a, b, seed), grads(torch.matmul, a, b, seed)
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(mine, its)
        assert mine.stride() == its.stride()
    assert len(tuned.calls) == 3


def test_backward_products_are_nt_and_tn_without_copies(tuned):
    grads(matmul, ints(6, 16), ints(16, 8), ints(6, 8))
    assert tuned.problems[1:] == ["6x16x8:fp32:nt", "16x8x6:fp32:tn"]


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_only_needed_gradients_are_computed(tuned, needed):
    a, b = (ints(4, 16).requires_grad_(needed[0]), ints(16, 8).requires_grad_(needed[1]))
    matmul(a, b).backward(ints(4, 8))
    assert (a.grad is not None, b.grad is not None) == needed
    assert len(tuned.calls) == 2


def test_only_needed_operands_are_saved(tuned):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.shape) or t, lambda t: t
    ):
        matmul(ints(4, 16).requires_grad_(), ints(16, 8))
    assert saved == [(16, 8)]


def test_expanded_and_sliced_gradients(tuned):
    a, b, c = ints(4, 16), ints(16, 8), ints(4, 16)

    def loss(multiply, a, b):
        y = torch.cat([multiply(a, b), multiply(c, b)], 1)
        return y[:, ::2].pow(2).sum() + multiply(a, b).sum()

    found = []
    for multiply in (matmul, torch.matmul):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        loss(multiply, x, y).backward()
        found.append((x.grad, y.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


BROADCAST = [
    ((5, 1, 2, 3), (4, 3, 6)),
    ((5, 4, 2, 3), (3, 6)),
    ((2, 3), (8, 3, 4)),
    ((3,), (8, 3, 4)),
    ((5, 2, 3), (3,)),
]


@pytest.mark.parametrize(("left", "right"), BROADCAST, ids=str)
def test_broadcast_gradients_are_summed(tuned, left, right):  # N15
    a, b = ints(*left), ints(*right)
    seed = ints(*torch.matmul(a, b).shape)
    ours, theirs = grads(matmul, a, b, seed), grads(torch.matmul, a, b, seed)
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("transposed", [False, True])
def test_first_and_second_derivatives_are_right(tuned, monkeypatch, lead, transposed):
    monkeypatch.setitem(operands.DTYPES, torch.float64, "fp32")
    a = torch.randn(*lead, 3, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(5, 4, dtype=torch.float64).mT if transposed else torch.randn(4, 5).double()
    b.requires_grad_()
    assert torch.autograd.gradcheck(matmul, (a, b), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(matmul, (a, b))
    assert tuned.calls


def test_a_modified_operand_is_noticed_in_backward(tuned):
    a, b = ints(4, 16).requires_grad_(), ints(16, 8)
    product = matmul(a, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_no_grad_and_inference_mode(tuned):
    a, b = ints(4, 16).requires_grad_(), ints(16, 8)
    with torch.no_grad():
        assert not matmul(a, b).requires_grad
    with torch.inference_mode():
        product = matmul(ints(4, 16), b)
        assert product.is_inference()
        assert torch.equal(
            matmul(ints(4, 4), product, out=torch.empty(4, 8)).isnan(), product < -1e9
        )
    assert len(tuned.calls) >= 2


@pytest.mark.parametrize(
    ("lead", "way"),
    [((), "kernel"), ((), "fallback"), ((2, 3), "kernel"), ((2, 3), "fallback"), ((2, 3), "graph")],
)
def test_a_result_is_no_view(tuned, monkeypatch, lead, way):
    call = torch.compile(matmul, backend="aot_eager") if way == "graph" else matmul
    if way == "fallback":
        monkeypatch.setattr(plans, "launch", lambda *args: False)
    a, b, scale = ints(*lead, 16), ints(16, 8), ints(8).requires_grad_()
    with torch.no_grad():
        result = call(a, b)
    assert torch.equal(result.mul_(scale), a @ b * scale)  # a view made in no_grad would refuse
    for _ in range(2):
        result = call(a.requires_grad_(), b)
        assert not result._is_view()
        assert torch.equal(result.detach_(), a @ b)


def test_checkpointing(tuned):
    a, b = ints(4, 16).requires_grad_(), ints(16, 8).requires_grad_()
    torch.utils.checkpoint.checkpoint(matmul, a, b, use_reentrant=False).sum().backward()
    assert torch.equal(a.grad, torch.ones(4, 8) @ b.detach().mT)


def test_a_layer_trains_like_torchs(tuned):
    layer = torch.nn.Linear(16, 8)
    other = copy.deepcopy(layer)
    x = torch.randn(4, 16)
    (matmul(x, layer.weight.mT) + layer.bias).square().sum().backward()
    (torch.matmul(x, other.weight.mT) + other.bias).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)
    assert layer.weight.grad.is_contiguous()


# Misses


def test_the_error_policy_names_problem_and_nearest(fake_gpu, entry_for, monkeypatch):
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "error")
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 999, "fp32", aligned=True)))
    for _ in range(2):
        with pytest.raises(CacheError, match=r"4x8x16:fp32:nn.*nearest: 4x8x999.*k: wanted 16"):
            matmul(ints(4, 16), ints(16, 8))
    matmul(ints(2, 4, 16), ints(2, 16, 8))  # no case for our kernels is no miss


def test_the_tune_policy_tunes_once_for_all_threads(fake_gpu, entry_for, monkeypatch, at_once):
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "tune")
    tuned = []
    a, b = ints(4, 16), ints(16, 8)

    def tune(problems, *, devices, progress):
        tuned.extend(problems)
        assert devices == [a.get_device()]
        time.sleep(0.05)
        entry = entry_for(problems[0], config=SMALL)
        dispatcher().store.put(entry)
        return tuning.TuneReport((tuning.TuneResult(problems[0], entry),))

    monkeypatch.setattr(tuning, "tune", tune)
    products = at_once(lambda: matmul(a, b))
    assert [str(problem) for problem in tuned] == ["4x8x16:fp32:nn"]
    assert len(products) == 16
    assert all(torch.equal(product, a @ b) for product in products)
    before = len(fake_gpu.calls)
    matmul(a, b)
    assert len(fake_gpu.calls) == before + 1


def test_nothing_is_tuned_in_deterministic_mode(fake_gpu, monkeypatch):
    """The noise of a measurement would decide which bits a product has."""
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "tune")
    monkeypatch.setattr(tuning, "tune", lambda *args, **options: pytest.fail("tuned"))
    a, b = ints(4, 16), ints(16, 8)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            assert torch.equal(matmul(a, b), a @ b)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not fake_gpu.calls


def test_what_was_put_off_in_deterministic_mode_is_tuned_after_it(fake_gpu, entry_for, monkeypatch):
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "tune")

    def tune(problems, **options):
        entry = entry_for(problems[0], config=SMALL)
        dispatcher().store.put(entry)
        return tuning.TuneReport((tuning.TuneResult(problems[0], entry),))

    monkeypatch.setattr(tuning, "tune", tune)
    a, b = ints(4, 16), ints(16, 8)
    torch.use_deterministic_algorithms(True)
    try:
        matmul(a, b)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not fake_gpu.calls
    assert torch.equal(matmul(a, b), a @ b)
    assert len(fake_gpu.calls) == 1


@pytest.mark.parametrize("how", ["raised", "reported"])
def test_a_failed_tuning_is_torch_with_one_warning(fake_gpu, monkeypatch, caplog, how):
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "tune")
    tries = []

    def tune(problems, *, devices, progress):
        tries.append(1)
        if how == "raised":
            raise CacheError("cannot write")
        return tuning.TuneReport((tuning.TuneResult(problems[0], error="cannot write"),))

    monkeypatch.setattr(tuning, "tune", tune)
    a, b = ints(4, 16), ints(16, 8)
    for _ in range(3):
        assert torch.equal(matmul(a, b), a @ b)
    assert tries == [1]
    assert caplog.text.count("cannot write") == 1


def test_an_unknown_policy_names_the_legal_ones(fake_gpu, monkeypatch):
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "guess")
    with pytest.raises(autoswizzle.errors.SettingsError, match="nearest, torch, model"):
        matmul(ints(4, 16), ints(16, 8))


# Damaged and unwritable caches


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", bytes(2**20), b"null", b"[]"])
def test_a_damaged_cache_never_breaks_a_product(fake_gpu, fresh, entry_for, caplog, content):
    problem = GemmProblem(4, 8, 16, "fp32")
    fresh.mkdir()
    path = fresh / entry_for(problem).key.file_name
    path.write_bytes(content)
    a, b = ints(4, 16), ints(16, 8)
    for _ in range(2):
        assert torch.equal(matmul(a, b), a @ b)
    assert path.read_bytes() == content
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    assert str(path) in record.getMessage()


@pytest.mark.parametrize("below", ["", "folder"])
def test_an_unusable_cache_folder_never_breaks_a_product(
    fake_gpu, tmp_path, monkeypatch, caplog, below
):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path / "file" / below))
    a, b = ints(4, 16), ints(16, 8)
    for _ in range(2):
        assert torch.equal(matmul(a, b), a @ b)
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) <= 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", ["x" * 5000, "/dev/zero", "no/such.json", "folder"])
def test_an_unusable_read_only_place_never_breaks_a_product(
    fake_gpu, tmp_path, monkeypatch, caplog, place
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_PATH", place)
    a, b = ints(4, 16), ints(16, 8)
    for _ in range(2):
        assert torch.equal(matmul(a, b), a @ b)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == (place != "folder")
    assert all(place in message for message in warned)


# Captures, prepare


def test_a_capture_never_decides_nor_loads(fake_gpu, monkeypatch, entry_for):
    problem = GemmProblem(4, 8, 16, "fp32")
    dispatcher().store.put(entry_for(problem, config=SMALL))
    a, b = ints(4, 16), ints(16, 8)
    monkeypatch.setattr(plans, "_capturing", lambda a: True)
    with monkeypatch.context() as context:
        context.setattr(dispatch.Dispatcher, "decide", lambda *args: pytest.fail("decided"))
        assert torch.equal(matmul(a, b), a @ b)
    assert not fake_gpu.calls
    monkeypatch.setattr(plans, "_capturing", lambda a: False)
    matmul(a, b)  # afterwards it is decided as ever, and loaded
    monkeypatch.setattr(plans, "_capturing", lambda a: True)
    matmul(a, b)
    assert len(fake_gpu.calls) == 2
    plans.plan_of(a, b).launcher = None
    assert torch.equal(matmul(a, b), a @ b)
    assert len(fake_gpu.calls) == 2


@pytest.mark.parametrize("policy", ON_MISS)
def test_a_miss_in_a_capture_is_torch_whatever_the_policy(fake_gpu, monkeypatch, policy):  # G01
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", policy)
    monkeypatch.setattr(plans, "_capturing", lambda a: True)
    monkeypatch.setattr(tuning, "tune", lambda *args, **options: pytest.fail("tuned"))
    a, b = ints(4, 16), ints(16, 8)
    for multiply in (matmul, lambda a, b: matmul(a, b, out=torch.empty(4, 8))):
        assert torch.equal(multiply(a, b), a @ b)
    assert torch.equal(linear(a, b.mT), a @ b)
    assert torch.equal(torch.ops.autoswizzle.mm(a, b), a @ b)
    assert not fake_gpu.calls


OPENED = []  # what is opened or listed, while there is a list to note it in
sys.addaudithook(
    lambda event, args: (
        OPENED[-1].append((event, args))
        if OPENED and event in ("open", "os.listdir", "os.scandir", "os.mkdir")
        else None
    )
)


def test_the_first_product_of_a_process_touches_no_file_in_a_capture(
    fake_gpu, monkeypatch, entry_for, capfd
):  # G01
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=SMALL))
    for remembered in (settings, shared_store, dispatcher, triton_version):
        remembered.cache_clear()
    monkeypatch.setattr(dispatch, "triton_version", triton_version)
    monkeypatch.setattr(plans, "_capturing", lambda a: True)
    a, b = ints(4, 16), ints(16, 8)
    OPENED.append([])
    try:
        product = matmul(a, b)
    finally:
        opened = OPENED.pop()
    assert torch.equal(product, a @ b)
    assert opened == []
    assert capfd.readouterr() == ("", "")


def test_a_problem_is_that_of_its_operands_device(tuned, monkeypatch, h200):  # G02
    asked = []
    monkeypatch.setattr(dispatch, "gpu_of", lambda device: asked.append(device) or h200)
    a = ints(4, 16)
    matmul(a, ints(16, 8))
    matmul(a, ints(16, 8), config=SMALL)
    assert asked == [a.get_device()] * 2


def test_prepare_loads_what_a_capture_then_runs(fake_gpu, monkeypatch, entry_for):
    real = torch.device
    monkeypatch.setattr(torch, "device", lambda *args: real("cpu"))
    problems = [GemmProblem(4, 8, 16, "fp32", layout) for layout in LAYOUTS]
    for problem in problems:
        dispatcher().store.put(entry_for(problem, config=SMALL))
    decisions = prepare([*problems, "4x8x99:fp32:nn"], device=0)
    assert [decision.source for decision in decisions] == ["cache"] * 4 + ["miss"]
    assert len(fake_gpu.calls) == 4
    monkeypatch.setattr(plans, "_capturing", lambda a: True)
    for problem in problems:
        a, b = scratch_operands(problem, real("cpu"))
        matmul(ints(*a.shape).as_strided(a.shape, a.stride()), b.zero_())
    assert len(fake_gpu.calls) == 8


def test_autocast_does_not_keep_prepare_from_loading(tuned, monkeypatch):
    real = torch.device
    monkeypatch.setattr(torch, "device", lambda *args: real("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prepare(["4x8x16:fp16:nn"], device=0)
    assert tuned.problems == ["4x8x16:fp16:nn"]


def test_prepare_does_with_a_miss_what_the_policy_says(fake_gpu, entry_for, monkeypatch):
    real = torch.device
    monkeypatch.setattr(torch, "device", lambda *args: real("cpu"))

    def tune(problems, **options):
        entry = entry_for(problems[0], config=SMALL)
        dispatcher().store.put(entry)
        return tuning.TuneReport((tuning.TuneResult(problems[0], entry),))

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setenv("AUTOSWIZZLE_ON_MISS", "tune")
    assert [d.config for d in prepare(["4x8x16:fp16:nn", "2x4x8x16:fp16:nn"], 0)] == [SMALL, TORCH]
    assert fake_gpu.problems == ["4x8x16:fp16:nn"]
    policy = replace(dispatcher().settings, on_miss="error")
    monkeypatch.setattr(dispatcher(), "settings", policy)
    with pytest.raises(CacheError, match="no tuned entry for 4x8x32:fp16:nn"):
        prepare(["4x8x32:fp16:nn"], 0)


def test_what_was_prepared_serves_folded_batches_in_a_capture(tuned, monkeypatch):
    matmul(ints(6, 16), ints(16, 8))
    monkeypatch.setattr(plans, "_capturing", lambda a: True)
    a, b = ints(2, 3, 16), ints(16, 8)
    assert torch.equal(matmul(a, b), torch.matmul(a, b))
    assert len(tuned.calls) == 2
    assert torch.equal(matmul(a.mT.contiguous().mT, b), torch.matmul(a, b))  # can't be folded
    assert len(tuned.calls) == 2


def test_every_dtype_has_a_torch_name():
    assert set(operands.DTYPES.values()) <= set(ITEMSIZE)
