"""Problems, keys and entries that several test files build on."""

import ctypes
import importlib.util
import os
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch._C._dynamo.guards import _empty_strided_cpu

from autoswizzle import dispatch, operands, plans
from autoswizzle import kernels as kernel_package
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import shared_store
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.settings import settings


def _beside(name):
    """A fixture that is the module of that name beside this file."""

    @pytest.fixture(name=name)
    def module(monkeypatch):
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        return import_module(name)

    return module


sharing, stored_search, fake_laboratory, machine_code, gluon_on_numpy, few_rows = map(
    _beside,
    ("sharing", "stored_search", "fake_laboratory", "machine_code", "gluon_on_numpy", "few_rows"),
)


@pytest.fixture
def load(monkeypatch):
    """Imports a benchmark as its command line does, from its own folder."""
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))

    def imported(name):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return imported


@pytest.fixture
def h200():
    return find_gpu("H200")


@pytest.fixture(params=["A100-80GB", "A10", "L4", "H200", "B200", "RTX 5080"])
def target(request):
    """A GPU of each capability that kernels are compiled for: sm_80, 86, 89, 90, 100, 120."""
    return find_gpu(request.param)


@pytest.fixture
def entry_for(h200):
    """Builds a measured entry: entry_for("64x128x256:fp16:nn", ratio=1.1, ...)."""

    def build(problem="64x128x256:fp16:nn", *, gpu=h200, source="aaaa", triton=(3, 6), **changes):
        problem = GemmProblem.parse(problem) if isinstance(problem, str) else problem
        config = changes.pop("config", GemmConfig(block_m=64, block_n=64, num_stages=2))
        source = "" if config == TORCH else source
        entry = CacheEntry(
            key=key_for(problem, gpu, source, triton),
            config=config,
            time_us=10.0,
            torch_us=12.0,
            ratio=1.2,
            ratio_low=1.15,
            ratio_high=1.25,
            host_us=8.0,
            method="sustained",
            trials=40,
            effort="standard",
            date="2026-11-29T12:00:00Z",
            gpu=gpu.name,
            versions={"torch": "2.13.0", "cuda": "13.0"},
        )
        return replace(entry, **changes)

    return build


class Launch:
    """Stands for kernels.bound.DirectLauncher."""

    direct = True

    def __init__(self, run, operands):
        self.run = run
        self.facts = [(t.shape, t.stride(), t.dtype) for t in operands]

    def __call__(self, a, b, out):
        assert [(t.shape, t.stride(), t.dtype) for t in (a, b, out)] == self.facts
        self.run(a, b, out)

    def start(self, *addresses):
        self.run(*(self.at(*where) for where in zip(addresses, self.facts, strict=True)))

    @staticmethod
    def at(address, facts):
        """The tensor that begins there."""
        shape, strides, dtype = facts
        steps = (stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True))
        memory = (ctypes.c_byte * ((1 + sum(steps)) * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


class Kernels:
    """Stands for our kernels on the CPU: multiplies with torch and records what it was asked."""

    def __init__(self):
        self.calls = []
        self.error = None

    def __call__(self, config, problem, a, b, out):
        """As kernels.bind."""
        return Launch(partial(self.run, config, problem), (a, b, out))

    def run(self, config, problem, a, b, out):
        if self.error is not None:
            raise self.error
        assert a.shape == (problem.m, problem.k)
        assert b.shape == (problem.k, problem.n)
        assert out.shape == (problem.m, problem.n)
        self.calls.append((config, problem))
        # like a kernel, it writes memory behind autograd's back
        out.data.copy_(operands.torch_mm(a.data, b.data))

    @property
    def problems(self):
        return [str(problem) for _, problem in self.calls]


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process state of its own: settings from an empty environment, an empty user cache."""
    for name in list(os.environ):
        if name.startswith("AUTOSWIZZLE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path / "user"))
    monkeypatch.setattr("autoswizzle.cache.store.SHIPPED", tmp_path / "shipped")
    singletons = (settings, shared_store, dispatcher)
    for singleton in singletons:
        singleton.cache_clear()
    yield tmp_path / "user"
    for singleton in singletons:
        singleton.cache_clear()


@pytest.fixture
def own_main(monkeypatch):
    """What a program run in this process changes of it is put back."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def fake_gpu(fresh, monkeypatch, h200):
    """CPU tensors count as an H200's, and Kernels stands for our kernels."""
    kernels = Kernels()
    monkeypatch.setattr(operands, "on_gpu", attrgetter("is_cpu"))
    monkeypatch.setattr(operands, "DEVICE", "cpu")
    monkeypatch.setattr(plans, "_current_device", lambda: -1)
    monkeypatch.setattr(plans, "_empty_strided_cuda", _empty_strided_cpu, raising=False)
    monkeypatch.setattr(dispatch, "gpu_of", lambda device: h200)
    monkeypatch.setattr(dispatch, "bind_kernel", kernels)
    monkeypatch.setattr(kernel_package, "current_source", {"pointer": "aaaa", "torch": ""}.get)
    monkeypatch.setattr(dispatch, "triton_version", lambda: (3, 6))
    return kernels


@pytest.fixture
def tuned(fake_gpu, entry_for, monkeypatch):
    """Every problem is tuned: decide answers with a small config."""
    real = dispatch.Dispatcher._decide

    def decide(self, problem, gpu):
        if self.settings.disabled:
            return real(self, problem, gpu)
        return dispatch.Decision(problem, GemmConfig(block_m=16, block_n=32), "cache", "a test")

    monkeypatch.setattr(dispatch.Dispatcher, "_decide", decide)
    return fake_gpu
