"""patch: what it routes, what it leaves alone, and that undo is exact.

`tuned` makes CPU tensors count as a GPU's and every problem tuned, so a routed product is a call of
the stand-in for the kernels.
"""

import copy
import functools
import gc
import inspect
import io
import pickle
import subprocess
import sys
import threading
import weakref
from types import MethodType

import pytest
import torch
from torch.nn import functional
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils.checkpoint import checkpoint

import autoswizzle
from autoswizzle.errors import ArgumentError
from autoswizzle.patching import _TARGETS, patch

NAMES = [(target.owner, target.name) for target in _TARGETS]


def ints(*shape):
    return torch.randint(-2, 3, shape).float()


A, B = ints(4, 16), ints(16, 8)


def state():
    return [(getattr(owner, name), name in vars(owner)) for owner, name in NAMES]


@pytest.fixture(autouse=True)
def undone():
    """Every test leaves torch as it was."""
    before = state()
    torch._dynamo.reset()
    yield
    assert state() == before


class Attention(torch.nn.Module):
    """Every way to multiply that models use."""

    def __init__(self, width=16):
        super().__init__()
        self.project = torch.nn.Linear(width, width)
        self.plain = torch.nn.Linear(width, width, bias=False)
        self.out = torch.nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        q, k = self.project(x), self.plain(x)
        scores = torch.matmul(q, k.transpose(-1, -2)).softmax(-1)
        return (scores @ x) @ self.out


def routed(tuned, call):
    before = len(tuned.calls)
    result = call()
    return result, len(tuned.calls) - before


CALLS = {
    "matmul": lambda: torch.matmul(A, B),
    "matmul by name": lambda: torch.matmul(input=A, other=B),
    "matmul half by name": lambda: torch.matmul(A, other=B),
    "matmul into": lambda: torch.matmul(A, B, out=torch.empty(4, 8)),
    "@": lambda: A @ B,
    "method": lambda: A.matmul(B),
    "folded": lambda: torch.matmul(A.view(2, 2, 16), B),
    "mm": lambda: torch.mm(A, B),
    "mm by name": lambda: torch.mm(A, mat2=B),
    "mm into": lambda: torch.mm(A, B, out=torch.empty(4, 8)),
    "mm method": lambda: A.mm(B),
    "addmm": lambda: torch.addmm(B[0], A, B),
    "addmm by name": lambda: torch.addmm(input=B[0], mat1=A, mat2=B),
    "addmm method": lambda: B[0].addmm(A, B),
    "linear": lambda: functional.linear(A, B.t()),
    "linear with bias": lambda: functional.linear(A, B.t(), B[0]),
    "linear by name": lambda: functional.linear(input=A, weight=B.t(), bias=B[0]),
    "linear without bias by name": lambda: functional.linear(A, B.t(), bias=None),
    "module": lambda: LAYER(A),
}
LAYER = torch.nn.Linear(16, 8)


@pytest.mark.parametrize("name", CALLS)
def test_a_routed_call_runs_our_kernel_and_equals_torch(tuned, name):
    expected = CALLS[name]()
    with patch():
        result, calls = routed(tuned, CALLS[name])
    torch.testing.assert_close(result, expected)
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())
    assert calls == 1
    assert routed(tuned, CALLS[name])[1] == 0


OTHERS = {
    "scaled addmm": lambda: torch.addmm(B[0], A, B, alpha=2),
    "addmm of a matrix": lambda: torch.addmm(A[:, :8], A, B),
    "addmm without it": lambda: torch.addmm(B[0], A, B, beta=0),
    "addmm into": lambda: torch.addmm(B[0], A, B, out=torch.empty(4, 8)),
    "bmm": lambda: torch.bmm(A[None], B[None]),
    "a batch": lambda: torch.matmul(A[None], B[None]),
    "mm of 3-D": lambda: torch.mm(A[None], B),
    "bmm of 2-D": lambda: torch.bmm(A, B),
    "sparse": lambda: torch.mm(A.to_sparse(), B).to_dense(),
    "no tensors": lambda: torch.matmul(3, 4),
    "one": lambda: torch.matmul(A),
    "three": lambda: torch.matmul(A, B, B),
    "unknown name": lambda: torch.matmul(A, B, wrong=B),
    "no first": lambda: torch.matmul(other=B),
    "twice": lambda: torch.matmul(A, B, input=A),
    "method of a number": lambda: A @ 3,
    "number @": lambda: 3 @ A,
    "misfit": lambda: A @ A,
    "linear misfit": lambda: functional.linear(A, B),
    "linear of a list": lambda: functional.linear(A, [1]),
    "integers": lambda: torch.mm(A.int(), B.int()),
    "a vector of weights": lambda: functional.linear(A, B[:, 0]),
}


def outcome(call):
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # compared, whatever it is
        return type(error), str(error)


@pytest.mark.parametrize("name", OTHERS)
def test_another_form_is_the_function_it_names(tuned, name):
    expected = outcome(OTHERS[name])
    with patch():
        found, calls = routed(tuned, lambda: outcome(OTHERS[name]))
    assert calls == 0
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("name", ["matmul", "mm", "bmm", "addmm", "nn.functional.linear"])
def test_opinfo_samples_equal_torch(tuned, name):
    info = next(info for info in op_db if info.name == name)
    for sample in info.sample_inputs("cpu", torch.float32):
        expected = info.op(sample.input, *sample.args, **sample.kwargs)
        with patch():
            op = getattr(functional if "linear" in name else torch, name.rpartition(".")[2])
            result = op(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(result, expected)


def test_a_miss_under_a_patch_is_torch_once(fake_gpu):
    for scope in (None, LAYER):
        with patch(scope):
            assert torch.equal(autoswizzle.matmul(A, B), CALLS["matmul"]())
            torch.testing.assert_close(LAYER(A), autoswizzle.linear(A, LAYER.weight, LAYER.bias))
    assert not fake_gpu.calls


def test_subclasses_see_the_function_they_call(tuned):
    seen = []

    class Seen(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    expected = torch.mm, torch.bmm, torch.matmul, functional.linear
    x = A.as_subclass(Seen)
    with patch():
        torch.mm(x, B)
        torch.bmm(x[None], B[None])
        torch.matmul(A, B.as_subclass(Seen))
        functional.linear(x, B.t())
    assert [func for func in seen if func in expected] == list(expected)
    assert not tuned.calls


# Undoing


def test_nested_patches_are_undone_in_any_order(tuned):
    before = state()
    first, second, third = patch(), patch(LAYER), patch()
    first.undo()
    first.undo()
    assert routed(tuned, CALLS["@"])[1] == 1
    third.undo()
    assert routed(tuned, CALLS["@"])[1] == 0
    assert routed(tuned, CALLS["module"])[1] == 1
    second.undo()
    assert routed(tuned, CALLS["module"])[1] == 0
    assert state() == before
    assert torch.Tensor.__matmul__ is torch._C.TensorBase.__matmul__


def test_an_error_inside_undoes(tuned):
    with pytest.raises(ZeroDivisionError), patch():
        raise ZeroDivisionError
    assert routed(tuned, CALLS["@"])[1] == 0


def test_an_undone_patch_does_not_come_back_with_another(tuned):
    done = patch(LAYER)
    done.undo()
    with patch(torch.nn.Linear(2, 2)):
        assert routed(tuned, CALLS["module"])[1] == 0


def test_sixteen_threads_patch_at_once(tuned, at_once):
    before = state()

    def work():
        for _ in range(20):
            with patch(), patch(LAYER):
                assert torch.equal(A @ B, torch.mm(A, B))

    at_once(work)
    assert state() == before
    assert len(tuned.calls) == 16 * 20 * 2


def test_what_others_put_over_ours_stays(tuned):
    real, handle = torch.mm, patch()
    ours = torch.mm
    try:
        torch.mm = lambda *args: ours(*args)
        theirs = torch.mm
        handle.undo()
        assert torch.mm is theirs
        assert routed(tuned, CALLS["mm"])[1] == 0
        with patch():
            assert routed(tuned, CALLS["mm"])[1] == 1
        assert torch.mm is theirs
    finally:
        torch.mm = real


def test_replaced_functions_keep_their_names():
    with patch():
        assert pickle.loads(pickle.dumps(torch.nn.functional.linear)) is functional.linear
        assert torch.matmul.__name__ == torch.Tensor.matmul.__name__ == "matmul"
        assert "Matrix product" in torch.matmul.__doc__


def test_another_module_is_named():
    with pytest.raises(ArgumentError, match=r"module must be a torch.nn.Module or None, got 3"):
        patch(3)


# One module


def test_only_the_modules_forward_is_routed(tuned):
    model, x = Attention(), torch.randn(4, 16)
    expected = model(x)
    with patch(model):
        result, calls = routed(tuned, lambda: model(x))
        assert calls == 5
        assert routed(tuned, lambda: Attention()(x))[1] == 0
        assert routed(tuned, CALLS["@"])[1] == 0
        assert routed(tuned, lambda: model.plain(x))[1] == 1  # a submodule called by itself
    torch.testing.assert_close(result, expected)
    assert routed(tuned, lambda: model(x))[1] == 0


def test_other_threads_are_not_routed_meanwhile(tuned):
    inside, leave = threading.Event(), threading.Event()

    class Waits(torch.nn.Module):
        def forward(self):
            inside.set()
            leave.wait(30)
            return A @ B

    model = Waits()
    with patch(model):
        thread = threading.Thread(target=model)
        thread.start()
        inside.wait(30)
        try:
            assert routed(tuned, CALLS["@"])[1] == 0
        finally:
            leave.set()
            thread.join()
        assert len(tuned.calls) == 1


def test_a_failing_forward_ends_its_scope(tuned):
    model = Attention()
    with patch(model):
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 15))
        assert routed(tuned, CALLS["@"])[1] == 0


def test_a_handle_keeps_no_model_once_undone():
    model = Attention()
    gone = weakref.ref(model)
    with patch(model) as handle:
        del model
        assert gone() is not None
    gc.collect()
    assert gone() is None
    handle.undo()


def test_the_module_is_as_it_was():
    model = Attention()
    keys, members = list(model.state_dict()), [dict(vars(m)) for m in model.modules()]
    with patch(model):
        assert list(model.state_dict()) == keys
        assert model.load_state_dict(Attention().state_dict()).missing_keys == []
        assert inspect.signature(model.forward) == inspect.signature(Attention().forward)
        assert [name for name, _ in model.named_modules()] == ["", "project", "plain"]
    assert [dict(vars(m)) for m in model.modules()] == members


def test_a_forward_of_its_own_comes_back(tuned):
    model = Attention()
    own = model.forward = lambda x: x @ B
    first, second = patch(model), patch(model)
    assert routed(tuned, lambda: model(A))[1] == 1
    first.undo()
    assert routed(tuned, lambda: model(A))[1] == 1
    second.undo()
    assert model.forward is own


class Static(torch.nn.Module):
    @staticmethod
    def forward(x):
        return x @ B


class OfClass(torch.nn.Module):
    @classmethod
    def forward(cls, x):
        return x @ B


class Builtin(torch.nn.Module):
    forward = torch.sum


class Partial(torch.nn.Module):
    def scaled(self, x, by):
        return by * (x @ B)

    forward = functools.partialmethod(scaled, by=2)


class Property(torch.nn.Module):
    @property
    def forward(self):
        return lambda x: x @ B


@pytest.mark.parametrize("kind", [Static, OfClass, Builtin, Partial, Property])
def test_a_forward_that_is_no_plain_method(kind):
    model = kind()
    expected, signature = (
        model(A),
        str(inspect.signature(model.forward)) if kind is not Builtin else "",
    )
    for _ in range(2):
        with patch(model):
            assert torch.equal(model(A), expected)
            assert torch.equal(copy.deepcopy(model)(A), expected)
            assert kind is Builtin or str(inspect.signature(model.forward)) == signature
        assert vars(model).get("forward") is None


def test_a_forward_of_its_own_keeps_signature_and_copies():
    model = Attention()
    model.forward = MethodType(lambda self, x, mask=None: x @ self.out, model)
    signature = inspect.signature(model.forward)
    with patch(model):
        assert inspect.signature(model.forward) == signature
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.out.zero_()
        assert not other(A).any()
        assert model(A).any()


def test_a_class_whose_forward_changes(tuned):
    class Model(torch.nn.Module):
        def forward(self, x):
            return x

    model = Model()
    with patch(model):
        assert model(A) is A
        Model.forward = lambda self, x: x @ B
        assert routed(tuned, lambda: model(A))[1] == 1
    Model.forward = lambda self, x: x @ B + 1
    with patch(model):
        assert torch.equal(model(A), A @ B + 1)


def test_replicas_of_data_parallel_are_their_own_modules(tuned):
    model = torch.nn.Linear(16, 8)
    with patch(model):
        replica = model._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.zeros(8, 16), torch.ones(8)
        result, calls = routed(tuned, lambda: replica(A))
    assert torch.equal(result, torch.ones(4, 8))
    assert calls == 1
    assert "_replicate_for_data_parallel" not in vars(model)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_is_its_own_module(tuned, how):
    model, x = Attention(), torch.randn(4, 16)
    with patch(model):
        if how == "deepcopy":
            other = copy.deepcopy(model)
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            other = torch.load(file, weights_only=False)
        with torch.no_grad():
            other.out.zero_()
        assert not other(x).any()
        assert model(x).any()
    assert routed(tuned, lambda: other(x))[1] == 0


def test_training_is_as_with_torch(tuned):
    model, x = Attention(), torch.randn(4, 16)
    other = copy.deepcopy(model)
    with patch(model):
        loss = model(x).square().sum()
    _, calls = routed(tuned, loss.backward)
    other(x).square().sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
    assert calls >= 5


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_submodules_recompute_alike(tuned, reentrant):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Attention()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model, x = Model(), torch.randn(4, 16, requires_grad=True)
    with patch(model):
        loss = model(x).square().sum()
        first = len(tuned.calls)
        loss.backward()
    assert first == 5
    assert tuned.problems[:5] == tuned.problems[5:10]


def test_multi_head_attention_is_routed_inside(tuned):
    layer, x = torch.nn.MultiheadAttention(16, 2), torch.randn(2, 3, 16)
    expected = layer(x, x, x)[0]
    with patch(layer):
        result, calls = routed(tuned, lambda: layer(x, x, x)[0])
    torch.testing.assert_close(result, expected)
    assert calls >= 2


def every_product(x):
    square, batch = torch.mm(x, x.t()), x.t()[None]
    added = torch.addmm(square, x, x.t()) + square @ square
    return torch.matmul(added, functional.linear(square, square)) + torch.bmm(x[None], batch)[0]


def test_scripting_under_a_global_patch_is_torchs():
    with patch():
        scripted = torch.jit.script(every_product)
    assert torch.equal(scripted(A), every_product(A))


def test_scripted_parts_are_left_alone():
    model = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(16, 8)), torch.nn.Linear(8, 4))
    expected = model(A)
    with patch(model):
        torch.testing.assert_close(model(A), expected)


# torch.compile


class Graphs:
    """A backend that keeps the operators of each graph that Dynamo makes."""

    def __init__(self):
        self.operators = []

    def __call__(self, module, inputs):
        calls = [n for n in module.graph.nodes if n.op in ("call_function", "call_method")]
        self.operators.append([str(n.target) for n in calls])
        return module.forward

    def ours(self):
        return [sum("autoswizzle" in op for op in operators) for operators in self.operators]


def test_a_compiled_patched_module_is_one_graph_of_our_operators(tuned):
    graphs, model, x = Graphs(), Attention(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    expected = compiled(x)
    with patch(model):
        torch.testing.assert_close(compiled(x), expected)
        compiled(x)
    torch.testing.assert_close(compiled(x), expected)
    with patch(model):
        compiled(x)  # its graph is known
    assert graphs.ours() == [0, 5]


def test_a_process_whose_first_compilation_is_of_a_patched_module():
    code = """
import torch, autoswizzle
from torch.overrides import get_overridable_functions
found = []
def backend(module, inputs):
    found.extend(str(n.target) for n in module.graph.nodes if n.op.startswith("call"))
    return module.forward
layer = torch.nn.Linear(16, 16)
with autoswizzle.patch(layer):
    torch.compile(layer, backend=backend, fullgraph=True)(torch.ones(4, 16))
assert found == ["autoswizzle.linear"], found
assert torch.matmul in get_overridable_functions()[torch]
assert torch.Tensor.mm in get_overridable_functions()[torch.Tensor]
torch.compile(torch.matmul, backend=backend, fullgraph=True)(torch.ones(4, 16), torch.ones(16, 4))
assert "built-in method matmul" in found[1], found
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("outer", [False, True])
def test_compiled_submodules_of_a_patched_module(tuned, outer):
    graphs, x = Graphs(), torch.randn(4, 16)
    model = torch.nn.Sequential(Attention(), torch.nn.Linear(16, 16))
    model[0].compile(backend=graphs, fullgraph=True)
    handle = patch(torch.nn.Sequential(model) if outer else model)
    model(x)
    handle.undo()
    model(x)
    assert graphs.ours() == [5, 0]


def test_a_graph_break_inside_a_patched_module(tuned):
    class Breaks(Attention):
        def forward(self, x):
            x = x @ self.out
            torch._dynamo.graph_break()
            return self.plain(x)

    graphs, model, x = Graphs(), Breaks(), torch.randn(4, 16)
    expected = model(x)
    compiled = torch.compile(model, backend=graphs)
    with patch(model):
        torch.testing.assert_close(compiled(x), expected)
    assert tuned.calls


def test_functions_compiled_under_a_global_patch(tuned):
    def f(a, b):
        return torch.matmul(a, b) + torch.mm(a, b) + functional.linear(a, b.t()) + a @ b

    graphs = Graphs()
    compiled = torch.compile(f, backend=graphs, fullgraph=True)
    expected = compiled(A, B)
    with patch():
        torch.testing.assert_close(compiled(A, B), expected)
        with patch():  # no reason to compile again
            compiled(A, B)
    torch.testing.assert_close(compiled(A, B), expected)
    assert graphs.ours() == [0, 3]


def test_a_compiled_training_step(tuned):
    model, x = Attention(), torch.randn(4, 16)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with patch(model):
        compiled(x).square().sum().backward()
    other(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(tuned.calls) >= 10


def test_export_of_a_patched_module(tuned):
    model, x = Attention(), torch.randn(4, 16)
    expected = model(x)
    for strict in (False, True):
        with patch(model):
            program = torch.export.export(model, (x,), strict=strict)
        torch.testing.assert_close(program.module()(x), expected)


# Wrapped modules


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_ddp(tuned, one_process):
    from torch.nn.parallel import DistributedDataParallel

    inner, x = Attention(), torch.randn(4, 16)
    other = copy.deepcopy(inner)
    model = DistributedDataParallel(inner)
    with patch(model):
        assert list(model.state_dict()) == [f"module.{key}" for key in inner.state_dict()]
        _, calls = routed(tuned, lambda: model(x).square().sum().backward())
    other(x).square().sum().backward()
    assert calls >= 10
    for ours, theirs in zip(inner.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_fsdp(tuned, one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, x = Attention(), torch.randn(4, 16)
    expected = model(x)
    keys = list(model.state_dict())
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with patch(model):
        assert list(model.state_dict()) == keys
        result, calls = routed(tuned, lambda: model(x))
        result.square().sum().backward()
    torch.testing.assert_close(result, expected)
    assert calls == 5
    assert all(p.grad is not None for p in model.parameters())
