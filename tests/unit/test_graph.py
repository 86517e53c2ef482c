"""graph.py: torch.compile, export and opcheck, with a stand-in for the kernels."""

import pytest
import torch
from torch.nn import functional

import autoswizzle
from autoswizzle import plans
from autoswizzle.config import TORCH
from autoswizzle.dispatch import dispatcher
from autoswizzle.ops import matmul
from autoswizzle.problem import GemmProblem


def ints(*shape):
    return torch.randint(-2, 3, shape).float()


class Graphs:
    """A backend that runs the traced graphs as they are and keeps their operators."""

    def __init__(self):
        self.operators = []

    def __call__(self, module, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(graph, inputs):
            calls = [n for n in graph.graph.nodes if n.op == "call_function"]
            self.operators.append([str(n.target) for n in calls])
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(module, inputs)


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


def compiled(function, backend, **options):
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def test_an_untuned_product_is_plain_torch_in_the_graph(fake_gpu, graphs):
    a, b = ints(4, 16), ints(16, 8)
    f = compiled(lambda a, b: matmul(a, b) + 1, graphs)
    assert torch.equal(f(a, b), a @ b + 1)
    assert graphs.operators == [["aten.mm.default", "aten.add.Tensor"]]


def test_a_torch_decision_is_plain_torch_in_the_graph(fake_gpu, graphs, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32"), config=TORCH))
    f = compiled(matmul, graphs)
    f(ints(4, 16), ints(16, 8))
    assert graphs.operators == [["aten.mm.default"]]


def test_a_tuned_product_is_our_operator(tuned, graphs):
    a, b = ints(4, 16), ints(16, 8)
    f = compiled(lambda a, b: matmul(a, b) + 1, graphs)
    assert torch.equal(f(a, b), a @ b + 1)
    assert graphs.operators == [["autoswizzle.mm.default", "aten.add.Tensor"]]
    assert len(tuned.calls) == 1


def test_a_folded_batch_is_our_operator(tuned, graphs):
    a, b = ints(2, 3, 16), ints(16, 8)
    f = compiled(matmul, graphs)
    assert torch.equal(f(a, b), torch.matmul(a, b))
    assert tuned.problems == ["6x8x16:fp32:nn"]


@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5, 7)), ((2, 7, 5), (2, 5, 3)), ((0, 5), (5, 3)), ((3, 0), (0, 4)), ((4, 5), (5,))],
)
def test_other_products_are_plain_torch_in_the_graph(tuned, graphs, left, right):
    a, b = ints(*left), ints(*right)
    f = compiled(matmul, graphs)
    ours, theirs = f(a, b), torch.matmul(a, b)
    assert torch.equal(ours, theirs)
    assert ours.stride() == theirs.stride()
    assert "autoswizzle" not in str(graphs.operators)


def test_gradients_of_a_compiled_product_are_tuned(tuned, graphs):
    a, b = ints(4, 16).requires_grad_(), ints(8, 16).mT.requires_grad_()
    f = compiled(lambda a, b: matmul(a, b).square().sum(), graphs)
    f(a, b).backward()
    x, y = a.detach().requires_grad_(), b.detach().requires_grad_()
    (x @ y).square().sum().backward()
    assert torch.equal(a.grad, x.grad)
    assert torch.equal(b.grad, y.grad)
    assert len(tuned.calls) == 3
    assert sum(op.count("autoswizzle.mm.default") for op in graphs.operators) == 3


def test_dynamic_extents_compile_at_most_twice(tuned, graphs, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(64, 8, 16, "fp32", "tn", aligned=True)))
    b = ints(16, 8)
    f = compiled(lambda a, b: matmul(a.t(), b) + 1, graphs, dynamic=True)
    for m in (17, 33, 64, 1, 4096):
        a = ints(16, m)
        assert torch.equal(f(a, b), a.t() @ b + 1)
    assert len(graphs.operators) <= 2


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_one_graph_serves_every_m_of_a_tuned_weight(tuned, graphs, entry_for, layout):
    dispatcher().store.put(entry_for(GemmProblem(64, 8, 16, "fp32", layout)))
    b = ints(16, 8)
    torch._dynamo.mark_static(b)
    f = compiled(lambda a, b: matmul(a if layout == "nn" else a.t(), b), graphs, dynamic=True)
    for m in (17, 33, 64, 20, 4096):
        a = ints(m, 16)
        given = a if layout == "nn" else a.t().contiguous()
        torch._dynamo.mark_dynamic(given, 0 if layout == "nn" else 1)
        assert torch.equal(f(given, b), a @ b)
    assert len(graphs.operators) == 1
    assert "autoswizzle.mm.default" in graphs.operators[0]
    assert len(tuned.calls) == 5


def test_a_symbolic_m_uses_our_operator_where_some_m_is_tuned(tuned, graphs, entry_for):
    dispatcher().store.put(entry_for(GemmProblem(64, 8, 16, "fp32", "nn")))
    f = compiled(matmul, graphs, dynamic=True)
    a, b = ints(20, 16), ints(16, 8)
    torch._dynamo.mark_static(b)
    assert torch.equal(f(a, b), a @ b)
    assert "autoswizzle.mm.default" in graphs.operators[0]


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("shape", [(4, 16), (4, 3, 16)])
def test_an_extent_that_only_data_decides_is_plain_torch(tuned, graphs, entry_for, shape):
    dispatcher().store.put(entry_for(GemmProblem(64, 8, 16, "fp32", "nn")))
    f = compiled(lambda a, b, mask: matmul(a[mask.nonzero()[:, 0]], b), graphs)
    a, b, mask = ints(*shape), ints(16, 8), torch.tensor([1, 0, 1, 1])
    assert torch.equal(f(a, b, mask), a[mask.bool()] @ b)
    assert "autoswizzle" not in str(graphs.operators)


def test_out_inside_a_graph(tuned, graphs):
    def into(a, b, out):
        torch.neg(matmul(a, b, out=out), out=out)
        return out

    a, b, out = ints(4, 16), ints(16, 8), torch.full((4, 8), 7.0)
    compiled(into, graphs)(a, b, out)
    assert torch.equal(out, -(a @ b))


def test_the_lazy_public_name_compiles_at_first_use(tuned, graphs):
    vars(autoswizzle).pop("matmul", None)
    f = compiled(lambda a, b: autoswizzle.matmul(a, b), graphs)
    a, b = ints(4, 16), ints(16, 8)
    assert torch.equal(f(a, b), a @ b)


def test_a_graph_kept_on_disk_before_tuning_is_not_run_after_it(
    fake_gpu, entry_for, tmp_path, monkeypatch
):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    a, b = ints(4, 16), ints(16, 8)

    def run_as_a_new_process_does():
        torch._dynamo.reset()
        counters.clear()
        assert torch.equal(torch.compile(matmul, fullgraph=True)(a, b), a @ b)
        return counters["aot_autograd"]["autograd_cache_hit"]

    assert run_as_a_new_process_does() == 0
    assert run_as_a_new_process_does() == 1
    assert fake_gpu.calls == []
    dispatcher().store.put(entry_for(GemmProblem(4, 8, 16, "fp32")))
    assert run_as_a_new_process_does() == 0
    assert fake_gpu.problems == ["4x8x16:fp32:nn"]
    torch._dynamo.reset()


def test_autocast_inside_a_graph(graphs):
    def f(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return matmul(a, b)

    assert compiled(f, graphs)(ints(4, 16), ints(16, 8)).dtype == torch.bfloat16


class Doubled(torch.Tensor):
    """Doubles its products."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return doubled(func, super().__torch_function__(func, types, args, kwargs))


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return doubled(func, func(*args, **(kwargs or {})))


def doubled(func, result):
    return 2 * result if func in (torch.matmul, functional.linear) else result


PRODUCTS = {
    "matmul": lambda a, b, bias: autoswizzle.matmul(a, b),
    "linear": lambda a, b, bias: autoswizzle.linear(a, b.t()),
    "biased linear": lambda a, b, bias: autoswizzle.linear(a, b.t(), bias),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("who", ["a", "b", "bias", "mode"])
def test_who_overrides_torchs_functions_does_so_in_a_graph(tuned, graphs, name, who):
    call, given = PRODUCTS[name], {"a": ints(4, 16), "b": ints(16, 8), "bias": ints(8)}
    plain = call(**given)
    if who == "mode":  # which would see the operators of a graph run eagerly as well
        with Doubling():
            result = compiled(lambda t: call(**t), graphs)(given)
    else:
        given[who] = given[who].as_subclass(Doubled)
        result = compiled(lambda t: call(**t), "eager")(given)
    used = who != "bias" or name == "biased linear"
    assert torch.equal(result.as_subclass(torch.Tensor), 2 * plain if used else plain)


def test_a_default_device_keeps_our_operator_in_a_graph(tuned, graphs):
    with torch.device("cpu"):
        compiled(matmul, graphs)(ints(4, 16), ints(16, 8))
    assert graphs.operators == [["autoswizzle.mm.default"]]


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_a_functional_transform_in_a_graph_is_plain_torch(tuned, graphs, transform):
    a, b = ints(4, 16), ints(16, 8)
    f, expected = {
        "vmap": (lambda a, b: torch.vmap(lambda row: matmul(row[None], b))(a), (a @ b)[:, None]),
        "grad": (
            lambda a, b: torch.func.grad(lambda x: matmul(x, b).sum())(a),
            b.sum(1).expand(4, 16),
        ),
        "jvp": (
            lambda a, b: torch.func.jvp(lambda x: matmul(x, b), (a,), (a + 1,))[1],
            (a + 1) @ b,
        ),
    }[transform]
    assert torch.equal(compiled(f, graphs)(a, b), expected)
    assert not tuned.calls


@pytest.mark.parametrize(("operator", "grad"), [("matmul", False), ("matmul", True), ("mm", False)])
def test_the_operators_pass_opcheck(tuned, operator, grad):
    checked = getattr(torch.ops.autoswizzle, operator).default
    for a, b in ((ints(4, 16), ints(16, 8)), (ints(16, 4).mT, ints(8, 16).mT)):
        torch.library.opcheck(checked, (a.requires_grad_(grad), b.requires_grad_(grad)))


def test_fake_results_are_shaped_like_real_ones(tuned):
    from torch._subclasses.fake_tensor import FakeTensorMode

    mm = torch.ops.autoswizzle.mm
    for a, b in (
        (ints(4, 16), ints(16, 8)),
        (ints(16, 4).mT, ints(8, 16).mT),
        (ints(1, 3), ints(3, 1)),
    ):
        with FakeTensorMode() as mode:
            fake = mm(mode.from_tensor(a), mode.from_tensor(b))
        real = mm(a, b)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_a_call_of_the_graphs_operator_knows_its_operands_again(tuned, graphs, monkeypatch):
    a, b = ints(4, 16), ints(16, 8)
    f = compiled(matmul, graphs)
    f(a, b)  # while it compiles, in another state of the thread
    f(a, b)
    monkeypatch.setattr(plans, "plan_of", lambda *args: pytest.fail("the long way"))
    assert torch.equal(f(a, b), a @ b)
    assert len(tuned.calls) == 3


def test_export(tuned):
    class Layer(torch.nn.Module):
        def forward(self, a, b):
            return matmul(a, b).relu()

    a, b = ints(4, 16), ints(16, 8)
    program = torch.export.export(Layer(), (a, b))
    assert torch.equal(program.module()(a, b), (a @ b).relu())
    assert torch.equal(program.run_decompositions().module()(a, b), (a @ b).relu())


def test_double_backward_through_the_operator(tuned, monkeypatch):
    monkeypatch.setitem(autoswizzle.operands.DTYPES, torch.float64, "fp32")
    a = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.ops.autoswizzle.matmul, (a, b))
    assert torch.autograd.gradgradcheck(torch.ops.autoswizzle.matmul, (a, b))
    assert tuned.calls
