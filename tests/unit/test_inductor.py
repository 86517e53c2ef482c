"""inductor.py: products in code that Inductor generates, with a stand-in for the kernels."""

import shutil

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from autoswizzle import inductor, plans
from autoswizzle.config import TORCH
from autoswizzle.dispatch import dispatcher
from autoswizzle.ops import matmul
from autoswizzle.problem import GemmProblem

CALL, OPERATOR = "autoswizzle.inductor.mm_into(", "torch.ops.autoswizzle.mm.default("


def ints(*shape):
    return torch.randint(-2, 3, shape).float()


@pytest.fixture
def generated():
    """Compiles a function with Inductor; returns its result and the code that was generated."""
    from torch._inductor import config
    from torch._inductor.lowering import lowerings

    def compiled(function, *arguments, **options):
        function = torch.compile(function, fullgraph=True, **options)
        result, codes = run_and_get_code(function, *arguments)
        return result, "\n".join(codes)

    def forget():
        torch._dynamo.reset()
        lowerings.pop(torch.ops.autoswizzle.mm.default, None)

    forget()
    with config.patch(force_disable_caches=True):
        yield compiled
    forget()


def test_a_tuned_product_is_called_without_a_dispatch(tuned, generated):
    a, b, c = ints(4, 16), ints(16, 8), ints(8, 32)
    result, code = generated(lambda a, b, c: matmul(matmul(a, b), c), a, b, c)
    assert torch.equal(result, a @ b @ c)
    assert tuned.problems == ["4x8x16:fp32:nn", "4x32x8:fp32:nn"]
    assert code.count(CALL) == 2
    assert code.count("import autoswizzle.inductor") == 1
    assert OPERATOR not in code


def test_later_calls_start_the_kernel_at_addresses(tuned, generated, monkeypatch):
    a, b = ints(4, 16), ints(16, 8)
    function = torch.compile(matmul, fullgraph=True)
    function(a, b)
    monkeypatch.setattr(plans, "launch", None)  # the long way
    monkeypatch.setattr(inductor, "launch", None)
    for _ in range(3):
        x, y = ints(4, 16), ints(16, 8)
        assert torch.equal(function(x, y), x @ y)
    assert len(tuned.calls) == 4


def test_operands_keep_the_strides_they_were_tuned_for(tuned, generated):
    a, b = ints(16, 4), ints(8, 16)
    result, code = generated(lambda a, b: matmul(a.t(), b.t()), a, b)
    assert torch.equal(result, a.t() @ b.t())
    assert tuned.problems == ["4x8x16:fp32:tt"]
    assert CALL in code


def test_gradients(tuned, generated):
    a, b = ints(4, 16).requires_grad_(), ints(16, 8).requires_grad_()
    result, _ = generated(matmul, a, b)
    given = ints(4, 8)
    result.backward(given)
    assert torch.equal(a.grad, given @ b.detach().t())
    assert torch.equal(b.grad, a.detach().t() @ given)
    assert len(tuned.calls) == 3


def test_symbolic_rows(tuned, generated, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(64, 8, 16, "fp32", "nn")))
    b = ints(16, 8)
    torch._dynamo.mark_static(b)
    result, code = generated(matmul, ints(20, 16), b, dynamic=True)
    assert result.shape == (20, 8)
    assert CALL in code


def test_a_product_that_torch_runs_is_torchs(fake_gpu, generated, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=TORCH))
    _, code = generated(matmul, ints(4, 16), ints(16, 8))
    assert "extern_kernels.mm(" in code
    assert "autoswizzle" not in code


def test_a_kernel_that_fails_is_replaced_by_torchs(tuned, generated):
    from autoswizzle.errors import CandidateError

    tuned.error = CandidateError("no")
    a, b = ints(4, 16), ints(16, 8)
    result, code = generated(matmul, a, b)
    assert torch.equal(result, a @ b)
    assert CALL in code


@pytest.mark.parametrize("known", [((2, 0), (2, 1)), ((3, 0), (3, 1))])
def test_another_version_of_torch_keeps_the_operator(tuned, generated, monkeypatch, known):
    monkeypatch.setattr(inductor, "KNOWN", known)
    a, b = ints(4, 16), ints(16, 8)
    result, code = generated(matmul, a, b)
    assert torch.equal(result, a @ b)
    assert OPERATOR in code
    assert CALL not in code


def test_what_inductor_made_up_is_replaced(tuned, generated):
    from torch._inductor.lowering import make_fallback

    make_fallback(torch.ops.autoswizzle.mm.default)
    _, code = generated(matmul, ints(4, 16), ints(16, 8))
    assert CALL in code
    assert OPERATOR not in code


def test_a_dispatch_mode_does_not_change_what_runs(tuned):
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} was seen")

    a, b, out = ints(4, 16), ints(16, 8), torch.full((4, 8), torch.nan)
    with Mode():
        inductor.mm_into(a, b, out=out)
    assert torch.equal(out, a @ b)
    assert len(tuned.calls) == 1


def test_an_output_that_is_not_aligned(tuned):
    a, b, memory = ints(4, 16), ints(16, 8), torch.full((33,), torch.nan)
    for out in (memory[:32].view(4, 8), memory[1:].view(4, 8)):
        for _ in range(2):  # the second one knows the operands
            out.fill_(torch.nan)
            inductor.mm_into(a, b, out=out)
            assert torch.equal(out, a @ b)


def test_what_inductor_does_not_compile_loads_nothing_of_it(tuned, monkeypatch):
    monkeypatch.delitem(inductor.sys.modules, "torch._inductor.lowering", raising=False)
    inductor.lower(torch.ops.autoswizzle.mm.default)
    assert "torch._inductor.lowering" not in inductor.sys.modules


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor's CPU code needs a C++ compiler")
class TestAroundIt:
    def test_what_surrounds_a_product_is_fused_as_ever(self, tuned, generated):
        a, b = ints(16, 4), ints(16, 8)
        result, code = generated(lambda a, b: (matmul(a.relu().t(), b) + 1).relu(), a, b)
        assert torch.equal(result, (a.relu().t() @ b + 1).relu())
        assert tuned.problems == ["4x8x16:fp32:tn"]  # as the graph was traced
        assert CALL in code
        assert code.count("async_compile.cpp_pybinding") == 2  # before it and after it

    def test_a_folded_batch(self, tuned, generated):
        a, b = ints(2, 3, 16), ints(16, 8)
        result, code = generated(lambda a, b: matmul(a * 2, b).relu(), a, b)
        assert torch.equal(result, (2 * a @ b).relu())
        assert tuned.problems == ["6x8x16:fp32:nn"]
        assert CALL in code

    def test_a_wrapper_in_cpp_keeps_the_operator(self, tuned, generated):
        from torch._inductor import config

        a, b = ints(4, 16), ints(16, 8)
        with config.patch(cpp_wrapper=True):
            result, code = generated(matmul, a, b)
        assert torch.equal(result, a @ b)
        assert len(tuned.calls) == 1
        assert CALL not in code
