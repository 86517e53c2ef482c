"""linear, patch and record_shapes on a GPU: real kernels, captures, compiled training."""

import copy

import pytest
import torch
from torch.nn import functional

import autoswizzle
from autoswizzle import kernels
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import shared_store
from autoswizzle.dispatch import dispatcher
from autoswizzle.hardware import detect
from autoswizzle.plans import plan_of
from autoswizzle.settings import settings
from autoswizzle.space import candidates
from autoswizzle.toolchain import triton_version

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Settings, user cache and decisions of its own for each test."""
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path))
    singletons = (settings, shared_store, dispatcher)
    for singleton in singletons:
        singleton.cache_clear()
    torch._dynamo.reset()
    yield
    for singleton in singletons:
        singleton.cache_clear()


def tune(problem):
    gpu = detect(torch.cuda.current_device())
    config = next(c for c in candidates(problem, gpu) if c.kernel == "pointer")
    key = key_for(problem, gpu, kernels.current_source("pointer"), triton_version())
    dispatcher().store.put(CacheEntry(key, config, time_us=1.0, torch_us=999.0, ratio=2.0))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(256, 512)
        self.down = torch.nn.Linear(512, 256, bias=False)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x))) @ self.down.weight


def model_and_input():
    torch.manual_seed(0)
    model = Mlp().to("cuda", torch.bfloat16)
    x = torch.randn(4, 32, 256, device="cuda", dtype=torch.bfloat16)
    with autoswizzle.record_shapes() as counts:
        model(x).square().mean().backward()
    model.zero_grad()
    for problem in counts:
        tune(problem)
    return model, x, counts


def gradients(model, run, x):
    run(x).square().mean().backward()
    found = [p.grad.float() for p in model.parameters()]
    model.zero_grad()
    return found


def test_linear_is_close_to_torch():
    model, x, _ = model_and_input()
    layer = model.up
    ours = autoswizzle.linear(x, layer.weight, layer.bias, activation="gelu")
    assert plan_of(x, layer.weight.t()).config is not None
    # The product, the sum with the bias and the activation are each rounded to bf16; torch adds the
    # bias before its first rounding. GELU's slope is at most 1.13.
    weight, bias, a = (each.double() for each in (layer.weight, layer.bias, x))
    product = a @ weight.t()
    total = product + bias
    exact = functional.gelu(total)
    bound = 2**-8 * (1.13 * (product.abs() + total.abs()) + exact.abs())
    bound += 2**-22 * a.shape[-1] * (a.abs() @ weight.abs().t())
    assert ((ours.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_patched_model_trains_as_with_torch(compiled):
    model, x, _ = model_and_input()
    other = copy.deepcopy(model)
    expected = gradients(other, other, x)
    run = torch.compile(model, fullgraph=True) if compiled else model
    with autoswizzle.patch(model):
        found = gradients(model, run, x)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() <= 2**-6 * theirs.norm()


def test_a_captured_patched_model():
    model, x, counts = model_and_input()
    with torch.no_grad():
        expected = model(x)
        decisions = autoswizzle.prepare(counts)
        assert not any(decision.uses_torch for decision in decisions)
        graph = torch.cuda.CUDAGraph()
        with autoswizzle.patch(model), torch.cuda.graph(graph):
            out = model(x)
        out.fill_(float("nan"))
        graph.replay()
    torch.testing.assert_close(out, expected, rtol=2**-5, atol=2**-5)


def test_recording_on_a_gpu_sees_the_backward():
    _, _, counts = model_and_input()
    layouts = sorted({problem.layout for problem in counts})
    assert layouts == ["nn", "nt", "tn"]
    assert sum(counts.values()) == 3 * 3 - 1
