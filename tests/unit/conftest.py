"""Problems, keys and entries that several test files build on."""

from dataclasses import replace

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem


@pytest.fixture
def h200():
    return find_gpu("H200")


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
