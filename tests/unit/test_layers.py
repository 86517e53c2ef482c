"""linear on the CPU: F.linear's contract, and our path with a stand-in for the kernels."""

import pytest
import torch
from torch.nn import functional
from torch.testing._internal.common_methods_invocations import op_db

from autoswizzle import operands, plans
from autoswizzle.config import GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.errors import ArgumentError
from autoswizzle.layers import ACTIVATIONS, linear
from autoswizzle.problem import GemmProblem

LINEAR_INFO = next(info for info in op_db if info.name == "nn.functional.linear")


def ints(*shape, dtype=torch.float32):
    return torch.randint(-2, 3, shape).to(dtype)


def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001  # compared, whatever it is
        return type(error), str(error)


def assert_same(ours, theirs):
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs
        return
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", sorted(LINEAR_INFO.dtypes, key=str), ids=str)
def test_opinfo_samples_equal_torch(dtype):
    samples = list(LINEAR_INFO.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point))
    assert len(samples) >= 5
    for sample in samples:
        assert_same(
            linear(sample.input, *sample.args, **sample.kwargs),
            functional.linear(sample.input, *sample.args, **sample.kwargs),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_opinfo_samples_through_our_path_equal_torch(tuned, dtype):
    for sample in LINEAR_INFO.sample_inputs("cpu", dtype, requires_grad=True):
        given = [sample.input, *sample.args, *sample.kwargs.values()]
        others = [t.detach().clone().requires_grad_() for t in given]
        ours, theirs = linear(*given), functional.linear(*others)
        close = {"rtol": 2**-9, "atol": 2**-9} if dtype is torch.float16 else {}  # rounded twice
        torch.testing.assert_close(ours, theirs, **close)
        ours.sum().backward()
        theirs.sum().backward()
        torch.testing.assert_close([t.grad for t in given], [t.grad for t in others], **close)
    assert len(tuned.calls) >= 5


CASES = [
    ((4, 16), (8, 16), (8,)),
    ((16,), (8, 16), (8,)),
    ((2, 3, 16), (8, 16), (8,)),
    ((2, 3, 16), (8, 16), None),
    ((4, 16), (8, 16), (1,)),
    ((4, 16), (8, 16), ()),
    ((4, 16), (8, 16), (4, 8)),
    ((4, 16), (16,), None),
    ((4, 16), (16,), ()),
    ((0, 16), (8, 16), (8,)),
    ((4, 0), (8, 0), (8,)),
    ((4, 16), (0, 16), (0,)),
    ((4, 16), (8, 15), None),
    ((4, 16), (8, 16), (7,)),
    ((4, 16), (2, 8, 16), None),
    ((), (8, 16), None),
]


@pytest.mark.parametrize(("x", "weight", "bias"), CASES, ids=str)
def test_shapes_and_errors_are_torchs(tuned, x, weight, bias):
    given = ints(*x), ints(*weight), None if bias is None else ints(*bias)
    assert_same(outcome(linear, *given), outcome(functional.linear, *given))


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float16, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.float16),
        (torch.int64, torch.int64, torch.int64),
        (torch.complex64, torch.complex64, torch.complex64),
        (torch.float64, torch.float64, torch.float64),
    ],
    ids=str,
)
def test_dtypes_are_torchs(tuned, dtypes):
    given = [ints(*s).to(d) for s, d in zip([(4, 16), (8, 16), (8,)], dtypes, strict=True)]
    assert_same(outcome(linear, *given), outcome(functional.linear, *given))
    assert not tuned.calls


@pytest.mark.parametrize("bad", [(None,), (1, 2), (ints(2, 2), None), (ints(2, 2), ints(2, 2), 3)])
def test_other_arguments_fail_as_torchs_do(bad):
    ours, theirs = outcome(linear, *bad), outcome(functional.linear, *bad)
    assert ours[0] is theirs[0] is TypeError


def test_a_foreign_operand_gets_the_call_as_torch_would_make_it():
    class Foreign:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func, len(args), kwargs

    for args in (
        (Foreign(), ints(4, 4)),
        (ints(4, 4), Foreign()),
        (Foreign(), ints(4, 4), ints(4)),
    ):
        assert linear(*args) == functional.linear(*args)


def test_the_weight_is_read_as_it_is_stored(tuned):
    weight = torch.nn.Parameter(ints(8, 16))
    with torch.no_grad():
        assert torch.equal(linear(ints(2, 3, 16) * 0 + 1, weight)[0, 0], weight.sum(1))
    assert tuned.problems == ["6x8x16:fp32:nt"]


def test_gradients_are_products_of_stored_operands(tuned):
    layer, x = torch.nn.Linear(16, 8), torch.randn(2, 3, 16, requires_grad=True)
    y = torch.randn(2, 3, 16).copy_(x.detach()).requires_grad_()
    linear(x, layer.weight, layer.bias).square().sum().backward()
    ours = x.grad, layer.weight.grad, layer.bias.grad
    assert tuned.problems == ["6x8x16:fp32:nt", "6x16x8:fp32:nn", "8x16x6:fp32:tn"]
    layer.zero_grad()
    functional.linear(y, layer.weight, layer.bias).square().sum().backward()
    torch.testing.assert_close(ours, (y.grad, layer.weight.grad, layer.bias.grad))
    assert ours[1].is_contiguous()


@pytest.mark.parametrize("bias", [False, True])
def test_first_and_second_derivatives_are_right(tuned, monkeypatch, bias):
    monkeypatch.setitem(operands.DTYPES, torch.float64, "fp32")
    given = [torch.randn(*s).double().requires_grad_() for s in [(2, 3, 4), (5, 4), (5,)]]
    assert torch.autograd.gradcheck(linear, given[: 2 + bias], check_batched_grad=True)
    assert torch.autograd.gradgradcheck(linear, given[: 2 + bias])
    assert tuned.calls


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_follow_the_bias(tuned, activation):
    x, weight, bias = torch.randn(4, 16), torch.randn(8, 16), torch.randn(8)
    plain = functional.linear(x, weight, bias)
    expected = {
        "relu": plain.clamp(min=0),
        "gelu": plain * 0.5 * (1 + torch.erf(plain / 2**0.5)),
        "gelu_tanh": 0.5
        * plain
        * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (plain + 0.044715 * plain**3))),
        "silu": plain * torch.sigmoid(plain),
    }[activation]
    torch.testing.assert_close(linear(x, weight, bias, activation=activation), expected)
    assert len(tuned.calls) == 1


@pytest.mark.parametrize("bad", ["tanh", "", 3, torch.relu])
def test_another_activation_is_named(bad):
    with pytest.raises(ArgumentError, match="relu, gelu, gelu_tanh, silu or None, got"):
        linear(ints(2, 2), ints(2, 2), activation=bad)


@pytest.mark.parametrize(("saved", "own"), [(1.0, False), (2.5, True)])
def test_a_bias_runs_on_a_kernel_that_saves_more_than_adding_it(fake_gpu, entry_for, saved, own):
    config = GemmConfig(block_m=16, block_n=32)
    entry = entry_for(
        GemmProblem(4, 8, 16, "fp32", "nt"), config=config, time_us=10.0, torch_us=10.0 + saved
    )
    dispatcher().store.put(entry)
    x, weight, bias = ints(4, 16), ints(8, 16), ints(8)
    assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))
    assert len(fake_gpu.calls) == own
    assert torch.equal(linear(x, weight), functional.linear(x, weight))
    assert len(fake_gpu.calls) == own + 1


def test_a_pass_costs_what_dram_takes(entry_for, h200):
    def pays(saved, m):
        problem = GemmProblem(m, 8192, 64, "bf16", "nt")
        entry = entry_for(problem, time_us=10.0, torch_us=10.0 + saved)
        decision = plans.Decision(problem, entry.config, "cache", "a test", entry)
        return plans.pays_a_pass(decision, problem, h200)

    moved_us = 2 * 8192 * 8192 * 2 / h200.dram_gbs / 1e3  # read and written, in bf16
    assert 50 < moved_us < 60
    assert pays(moved_us + 3, 8192)
    assert not pays(moved_us + 1, 8192)
    assert pays(moved_us / 2 + 3, 4096)


def test_autocast_is_torchs():
    x, weight, bias = ints(4, 16), ints(8, 16), ints(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, weight, bias).dtype is torch.bfloat16


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(4,), (2, 3)])
def test_compiled_in_one_graph(tuned, bias, lead):
    torch._dynamo.reset()
    given = ints(*lead, 16), ints(8, 16), ints(8) if bias else None
    f = torch.compile(lambda *t: linear(*t, activation="relu"), fullgraph=True, backend="aot_eager")
    assert torch.equal(f(*given), functional.linear(*given).relu())
    assert len(tuned.calls) == 1


def test_an_untuned_layer_is_plain_torch_in_the_graph(fake_gpu):
    torch._dynamo.reset()
    operators = []

    def backend(module, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(graph, inputs):
            operators.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=keep)(module, inputs)

    torch.compile(linear, fullgraph=True, backend=backend)(ints(4, 16), ints(8, 16), ints(8))
    assert operators == ["aten.t.default", "aten.addmm.default"]


@pytest.mark.parametrize("grad", [False, True])
def test_the_operator_passes_opcheck(tuned, grad):
    given = [t.requires_grad_(grad) for t in (ints(4, 16), ints(8, 16), ints(8))]
    torch.library.opcheck(torch.ops.autoswizzle.linear.default, tuple(given))
    assert tuned.calls
