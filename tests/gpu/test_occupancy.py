"""Resident blocks: compiled here, compiled for this GPU without it, and as the driver says."""

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from autoswizzle.config import GemmConfig
from autoswizzle.errors import CompileError
from autoswizzle.hardware import detect
from autoswizzle.kernels import compile_for
from autoswizzle.kernels.family import family
from autoswizzle.kernels.launch import load
from autoswizzle.kernels.offline import meta_operands
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import resident_blocks
from autoswizzle.space import candidates

KERNELS = 50
PROBLEMS = [
    GemmProblem.parse(text)
    for text in ("1024x1024x1024:bf16:nt", "1000x999x998:fp16:nn", "512x512x512:fp32:nt:tf32")
]


@pytest.fixture(scope="module")
def compiled():
    """(config, problem, offline resources, resources here, kernel) of KERNELS that fit, then of
    those that do not (with errors in place of resources), all compiled in parallel.
    """
    gpu = detect(0)
    draw = random.Random(0)
    drawn = [
        (config, problem)
        for problem in PROBLEMS
        for config in draw.sample(list(candidates(problem, gpu)), KERNELS)
    ]
    odd_warps = [GemmConfig(block_m=32, block_n=32, num_warps=warps) for warps in (1, 2, 16)]
    draw.shuffle(drawn)
    drawn = [(config, PROBLEMS[0]) for config in odd_warps] + drawn[: 2 * KERNELS]

    def both(case):
        config, problem = case
        call = family(config.kernel).call(config, problem, *meta_operands(problem))
        try:
            offline = compile_for(config, problem, gpu)
        except CompileError as error:
            offline = error
        try:
            kernel, here = load(call)
        except CompileError as error:
            kernel, here = None, error
        return config, problem, offline, here, kernel

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(both, drawn))
    fitting = [case for case in results if case[4] is not None]
    assert len(fitting) >= KERNELS
    return fitting[:KERNELS], [case for case in results if case[4] is None]


def test_offline_resources_are_those_of_the_loaded_kernel(compiled):
    for config, problem, offline, here, _ in compiled[0]:
        assert not isinstance(offline, CompileError), (str(config), str(problem), offline)
        plain = replace(offline, spill_bytes=0, warnings=())
        assert plain == here, (str(config), str(problem))


def test_what_does_not_fit_here_does_not_fit_offline(compiled):
    for config, problem, offline, here, _ in compiled[1]:
        assert isinstance(offline, CompileError), (str(config), str(problem), str(here))


def test_resident_blocks_are_the_drivers(compiled):
    torch.zeros(1, device="cuda")  # makes the GPU's context current in this thread
    driver = ctypes.CDLL("libcuda.so.1")
    seen = set()
    for config, problem, _, here, kernel in compiled[0]:
        count = ctypes.c_int()
        status = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(count),
            ctypes.c_void_p(kernel.function),
            ctypes.c_int(32 * here.num_warps),
            ctypes.c_size_t(here.shared_bytes),
        )
        assert status == 0
        assert resident_blocks(here, detect(0)) == count.value, (str(config), str(problem), here)
        seen.add(count.value)
    assert len(seen) > 3, "the kernels must differ in what limits them"
