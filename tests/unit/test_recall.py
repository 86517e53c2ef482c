"""recall.py: in every state of operands and thread, it answers as why_torch and plan_of do."""

import contextlib
import threading
import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoswizzle import plans, recall
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.layers import linear
from autoswizzle.operands import why_torch
from autoswizzle.ops import matmul
from autoswizzle.problem import GemmProblem
from autoswizzle.recall import LINEAR, MATMUL

SMALL = GemmConfig(block_m=16, block_n=32)


def ints(*shape, dtype=torch.float32):
    return torch.randint(-2, 3, shape).to(dtype)


def taught(a, b):
    """Operands whose like recall knows."""
    matmul(a, b)
    assert recall.recall(MATMUL, a, b) is not None
    return a, b


def assert_as_the_long_way(a, b):
    """Nothing is known of operands that are torch's, and of others their own plan."""
    known = recall.recall(MATMUL, a, b)
    if why_torch(a, b) is not None:
        assert known is None
    elif known is not None and recall.aligned(a.data_ptr(), b.data_ptr()):
        assert known.plan is plans.plan_of(a, b)


@contextlib.contextmanager
def tracing():
    def check(a):
        assert_as_the_long_way(a, b)
        assert_as_the_long_way(x, b)
        return a

    x, b = ints(4, 16), ints(16, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(check, (x,), check_trace=False)
    yield


@contextlib.contextmanager
def default_device():
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


class Unguarded(TorchDispatchMode):
    """One that guards of torch.compile overlook."""

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Silent(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


STATES = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast off": lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=False),
    "dual level": forward_ad.dual_level,
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "unguarded dispatch mode": Unguarded,
    "dispatch mode": lambda: FlopCounterMode(display=False),
    "function mode": Silent,
    "a device": lambda: torch.device("cpu"),
    "default device": default_device,
    "tracing": tracing,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inside", STATES)
@pytest.mark.parametrize("learned_in", STATES)
def test_a_state_of_the_thread(tuned, learned_in, inside, dtype):
    a, b = ints(4, 16, dtype=dtype), ints(16, 8, dtype=dtype)
    expected = torch.matmul(a, b)
    with STATES[learned_in]():
        matmul(a, b)
    with STATES[inside]():
        assert_as_the_long_way(a, b)
        product = matmul(a, b)
        assert product.dtype is torch.matmul(a, b).dtype
        assert product.is_inference() == torch.is_inference_mode_enabled()
    assert torch.equal(product, expected)


@pytest.mark.parametrize("state", ["no_grad", "a device", "default device"])
def test_a_state_that_changes_nothing_keeps_what_is_known(tuned, state):
    a, b = taught(ints(4, 16), ints(16, 8))
    with STATES[state]():
        assert recall.recall(MATMUL, a, b) is not None


def test_functional_transforms(tuned):
    a, b = taught(ints(4, 16), ints(16, 8))
    seen = []

    def check(x):
        for pair in ((x, b), (a, b), (a, x.mT)):
            assert_as_the_long_way(*pair)
        seen.append(x)
        return matmul(x, b)

    assert torch.equal(torch.vmap(check)(torch.stack([a, a])), torch.stack([a @ b, a @ b]))
    torch.func.grad(lambda x: check(x).sum())(a)
    torch.func.jvp(check, (a,), (a,))
    torch.func.vjp(check, a)
    torch.func.functionalize(check)(a)
    assert len(seen) >= 5
    for leaked in seen:  # wrappers of transforms that have ended
        assert_as_the_long_way(leaked, b)
    for leaked in seen[1:]:
        assert torch.equal(matmul(leaked, b.clone().requires_grad_()), a @ b)


def test_gradients_batched_by_autograd(tuned):
    a, b = ints(4, 16).requires_grad_(), ints(16, 8)
    seeds = torch.stack([ints(4, 8), ints(4, 8)])
    matmul(seeds[0], b.mT)
    [grad] = torch.autograd.grad(matmul(a, b), a, seeds, is_grads_batched=True)
    assert torch.equal(grad, seeds @ b.mT)


def outcome(multiply, a, b):
    try:
        return multiply(a, b)
    except (RuntimeError, TypeError) as error:
        return type(error)


def assert_equal(ours, theirs):
    if isinstance(theirs, torch.Tensor) and theirs.layout is torch.strided and not theirs.is_nested:
        assert ours.shape == theirs.shape
        assert ours.is_meta or torch.equal(ours, theirs)
    else:
        assert type(ours) is type(theirs)


class Subclass(torch.Tensor):
    pass


LIKE = {
    "the same": lambda a: a,
    "a clone": lambda a: a.clone(),
    "transposed": lambda a: a.mT.contiguous().mT,
    "every other": lambda a: torch.cat([a, a], 1)[:, ::2],
    "expanded": lambda a: a[:1].expand_as(a),
    "padded": lambda a: torch.cat([a, a], 1)[:, :16],
    "misaligned": lambda a: torch.cat([a.flatten(), a.flatten()])[1:65].view(4, 16),
    "shorter": lambda a: a[:2],
    "a vector": lambda a: a[0],
    "a batch": lambda a: a.expand(2, 4, 16),
    "half": lambda a: a.half(),
    "double": lambda a: a.double(),
    "integers": lambda a: a.int(),
    "requires grad": lambda a: a.clone().requires_grad_(),
    "has a grad_fn": lambda a: a.clone().requires_grad_() + 0,
    "a parameter": lambda a: torch.nn.Parameter(a),
    "a subclass": lambda a: a.as_subclass(Subclass),
    "negated": lambda a: torch._neg_view(a),
    "conjugate": lambda a: torch.complex(a, a).conj(),
    "imaginary of conjugate": lambda a: torch.complex(a, a).conj().imag,
    "sparse": lambda a: a.to_sparse(),
    "sparse rows": lambda a: a.to_sparse_csr(),
    "zero": lambda a: torch._efficientzerotensor(4, 16),
    "meta": lambda a: a.to("meta"),
    "nested": lambda a: torch.nested.nested_tensor([a, a]),
    "jagged": lambda a: torch.nested.nested_tensor([a, a], layout=torch.jagged),
    "quantized": lambda a: torch.quantize_per_tensor(a, 1.0, 0, torch.qint8),
    "mkldnn": lambda a: a.to_mkldnn(),
    "no tensor": lambda a: None,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", LIKE)
def test_an_operand_of_the_same_shape(tuned, first):
    a, b = ints(4, 16), ints(16, 8)
    for right in (b, b.clone().requires_grad_(), b.mT.contiguous().mT):
        for left in (a, LIKE[first](a), LIKE[first](a), a):
            assert_as_the_long_way(left, right)
            assert_equal(outcome(matmul, left, right), outcome(torch.matmul, left, right))
            assert_as_the_long_way(left, right)
            if isinstance(left, torch.Tensor) and left.dim() == 2:
                assert_as_the_long_way(right.mT, left.mT)
    with torch.inference_mode():
        inference = a.clone()
    matmul(inference, b)
    assert_as_the_long_way(inference, b)


def test_requires_grad_that_flips(tuned):
    a, b = taught(ints(4, 16), ints(16, 8))
    for wanted in (True, False, True):
        b.requires_grad_(wanted)
        product = matmul(a, b)
        assert product.requires_grad is wanted
        with torch.no_grad():
            assert not matmul(a, b).requires_grad
    product.sum().backward()
    assert torch.equal(b.grad, a.mT @ torch.ones(4, 8))


def test_a_plan_is_of_the_present_precision(tuned):
    a, b = taught(ints(4, 16), ints(16, 8))
    try:
        for wanted in ("tf32", "ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = wanted
            matmul(a, b)
            matmul(a, b)
            assert [problem.precision for _, problem in tuned.calls[-2:]] == [wanted] * 2
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_a_new_entry_ends_what_was_known(fake_gpu, entry_for):
    a, b = taught(ints(4, 16), ints(16, 8))
    assert not fake_gpu.calls
    for config in (SMALL, GemmConfig(block_m=64, swizzle="hilbert")):
        dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=config))
        for _ in range(2):
            assert torch.equal(matmul(a, b), a @ b)
        assert [c for c, _ in fake_gpu.calls[-2:]] == [config] * 2
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=TORCH))
    calls = len(fake_gpu.calls)
    matmul(a, b)
    assert len(fake_gpu.calls) == calls


def test_a_late_writer_teaches_the_memo_its_plan_is_from(fake_gpu, entry_for, monkeypatch):
    a, b = ints(4, 16), ints(16, 8)
    real = plans.plan_of

    def slow(*args):
        plan = real(*args)
        dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=SMALL))
        return plan

    with monkeypatch.context() as patched:
        patched.setattr(plans, "plan_of", slow)
        matmul(a, b)
    matmul(a, b)
    assert [config for config, _ in fake_gpu.calls] == [SMALL]


def test_a_capture_teaches_nothing(fake_gpu, monkeypatch, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=SMALL))
    a, b = ints(4, 16), ints(16, 8)
    with monkeypatch.context() as patched:
        patched.setattr(plans, "_capturing", lambda a: True)
        matmul(a, b)
        assert recall.recall(MATMUL, a, b) is None
    matmul(a, b)
    assert len(fake_gpu.calls) == 1


def test_another_current_device_is_left_to_the_launcher(tuned, monkeypatch):
    a, b = taught(ints(4, 16), ints(16, 8))
    monkeypatch.setattr(plans, "_current_device", lambda: 1)
    monkeypatch.setattr(plans, "_empty_strided_cuda", lambda *args: pytest.fail("not there"))
    assert torch.equal(matmul(a, b), a @ b)
    assert len(tuned.calls) == 2


def test_a_launch_by_tritons_jit_gets_tensors(tuned, monkeypatch):
    a, b = taught(ints(4, 16), ints(16, 8))
    launcher = plans.plan_of(a, b).launcher
    monkeypatch.setattr(launcher, "direct", False, raising=False)
    monkeypatch.setattr(launcher, "start", lambda *args: pytest.fail("started"))
    assert torch.equal(matmul(a, b), a @ b)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (1, 1, 5)])
def test_results_are_shaped_like_torchs(tuned, lead):
    b = ints(16, 8)
    for _ in range(3):
        a = ints(*lead, 16)
        ours, theirs = matmul(a, b), torch.matmul(a, b)
        assert torch.equal(ours, theirs)
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
    assert len(tuned.calls) == 3


def test_more_layouts_than_are_kept(tuned):
    a = ints(4, 16)
    for _ in range(2):
        for padding in range(recall.MAX_GUARDS + 4):
            b = ints(16, 8 + 4 * padding)[:, :8]
            assert torch.equal(matmul(a, b), a @ b)
    [kept] = [v for k, v in dispatcher().plans.items() if k[0] == MATMUL]
    assert len(kept) == recall.MAX_GUARDS


def test_one_tensor_twice_is_never_known(tuned):
    a = ints(8, 8)
    for _ in range(3):
        assert torch.equal(matmul(a, a), a @ a)
    assert recall.recall(MATMUL, a, a) is None
    assert not [key for key in dispatcher().plans if key[0] == MATMUL]


def test_without_guards_all_goes_the_long_way(tuned, monkeypatch):
    monkeypatch.setattr(recall, "_guard", None)
    a, b = ints(4, 16), ints(16, 8)
    for _ in range(3):
        assert torch.equal(matmul(a, b), a @ b)
    assert recall.recall(MATMUL, a, b) is None
    assert len(tuned.calls) == 3


def test_a_layer_is_not_a_product(tuned):
    x, w, bias = ints(8, 8), ints(8, 8), ints(8)
    for _ in range(2):
        assert torch.equal(matmul(x, w), x @ w)
        assert torch.equal(linear(x, w), x @ w.mT)
        assert torch.equal(linear(x, w, bias), x @ w.mT + bias)
    assert [problem.layout for _, problem in tuned.calls] == ["nn", "nt", "nt"] * 2


def test_a_known_layer_starts_on_the_weight_as_it_is_stored(tuned, monkeypatch):
    x, w = ints(2, 3, 16), ints(8, 16).requires_grad_()
    with torch.no_grad():
        linear(x, w)
        assert recall.recall(LINEAR, x, w) is not None
        monkeypatch.setattr(plans, "launch", lambda *args: pytest.fail("the long way"))
        assert torch.equal(linear(x, w), torch.nn.functional.linear(x, w))


def test_a_layer_of_known_operands_still_looks_at_its_bias(tuned):
    x, w = ints(4, 16), ints(8, 16)
    linear(x, w)
    calls = len(tuned.calls)
    for bias in (ints(1), ints(4, 8), ints(8).double(), ints(8).as_subclass(Subclass)):
        with contextlib.suppress(RuntimeError):  # torch's own
            linear(x, w, bias)
    assert len(tuned.calls) == calls


def test_threads_in_different_states(tuned):
    a, b = ints(4, 16), ints(16, 8)
    expected, wrong = a @ b, []
    barrier = threading.Barrier(8)

    def work(state):
        barrier.wait()
        with STATES[state]():
            for _ in range(50):
                assert_as_the_long_way(a, b)
                product = matmul(a, b)
                if not torch.equal(product.float(), expected):
                    wrong.append(state)

    states = ["plain", "no_grad", "inference", "autocast"] * 2
    threads = [threading.Thread(target=work, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
