"""Resident blocks: compiled here, compiled for this GPU without it, and as the driver says."""

import ctypes
import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
import torch

from autoswizzle.config import GROUPED_SWIZZLES, GemmConfig
from autoswizzle.errors import CompileError
from autoswizzle.hardware import detect
from autoswizzle.kernels import compile_for
from autoswizzle.kernels.family import family
from autoswizzle.kernels.launch import load
from autoswizzle.kernels.offline import meta_operands
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import resident_blocks
from autoswizzle.space import branches, why_illegal

KERNELS = 50
PROBLEMS = [
    GemmProblem.parse(text)
    for text in ("1024x1024x1024:bf16:nt", "1000x999x998:fp16:nn", "512x512x512:fp32:nt:tf32")
]
ODD_WARPS = [GemmConfig(block_m=32, block_n=32, num_warps=warps) for warps in (1, 2, 16)]


def draw(gpu):
    """Configurations of every family and problem, more than enough that KERNELS fit."""
    chosen = random.Random(0)
    drawn = [(config, PROBLEMS[0]) for config in ODD_WARPS]
    for problem in PROBLEMS:
        families = branches(problem, gpu)
        for kernel, tunables in families.items():
            for _ in range(4 * KERNELS // (len(PROBLEMS) * len(families))):
                config = legal_draw(chosen, kernel, tunables, problem, gpu)
                drawn += [(config, problem)] if config else []
    return drawn


def legal_draw(chosen, kernel, tunables, problem, gpu):
    """A random legal configuration, None where the family has none for the problem."""
    for _ in range(2000):
        values = {name: chosen.choice(legal) for name, legal in tunables.items()}
        if values["swizzle"] not in GROUPED_SWIZZLES:
            del values["group_size"]
        config = GemmConfig(kernel=kernel, **values)
        if why_illegal(config, problem, gpu) is None:
            return config
    return None


def here(config, problem):
    """(kernel, resources) as loaded on this GPU, or (None, error)."""
    call = family(config.kernel).call(config, problem, *meta_operands(problem))
    try:
        return load(call)
    except CompileError as error:
        return None, error


@pytest.fixture(scope="module")
def compiled():
    """(configuration, problem, resources or error offline, kernel or None, resources or error)."""
    gpu = detect(0)
    cases = draw(gpu)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(compile_for, config, problem, gpu) for config, problem in cases]
        offline = [job.exception() or job.result() for job in jobs]
    return [(*case, found, *here(*case)) for case, found in zip(cases, offline, strict=True)]


def test_offline_resources_are_those_of_the_loaded_kernel(compiled):
    fitting = [case for case in compiled if case[3] is not None]
    assert len(fitting) >= KERNELS
    for config, problem, offline, _, loaded in fitting:
        assert not isinstance(offline, Exception), (str(config), str(problem), offline)
        plain = replace(offline, spill_bytes=0, warnings=())
        assert plain == loaded, (str(config), str(problem))


def test_what_does_not_load_here_does_not_compile_offline(compiled):
    for config, problem, offline, kernel, _ in compiled:
        if kernel is None:
            assert isinstance(offline, CompileError), (str(config), str(problem), offline)


def test_resident_blocks_are_the_drivers(compiled):
    torch.zeros(1, device="cuda")  # makes the GPU's context current in this thread
    driver = ctypes.CDLL("libcuda.so.1")
    seen = set()
    for config, _, _, kernel, loaded in compiled:
        if kernel is None:
            continue
        count = ctypes.c_int()
        status = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(count),
            ctypes.c_void_p(kernel.function),
            ctypes.c_int(32 * loaded.num_warps),
            ctypes.c_size_t(loaded.shared_bytes),
        )
        assert status == 0
        assert resident_blocks(loaded, detect(0)) == count.value, (str(config), loaded)
        seen.add(count.value)
    assert len(seen) > 3, "the kernels must differ in what limits them"
