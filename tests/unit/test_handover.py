"""Partial sums handed over in memory that nobody zeroed: tickets, legality, code."""

import random
import re
from dataclasses import replace

import pytest
import torch

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import compile_for
from autoswizzle.kernels.family import SCRATCH, Scratch
from autoswizzle.kernels.offline import compiled
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.resources import estimate
from autoswizzle.space import candidates, why_illegal

DECODE = GemmProblem(16, 4096, 4096, "bf16", "nt")
SPLIT = GemmConfig(block_m=16, block_n=64, block_k=128, num_stages=4, split_k=4)


def test_every_launch_has_a_ticket_of_its_own():
    scratch = Scratch(flags=3, partials=5)
    found = [scratch.allocate(torch.device("cpu")) for _ in range(100)]
    assert tuple(found[0]) == SCRATCH
    assert found[0]["counter"] is None
    assert (found[0]["flags"].dtype, found[0]["flags"].numel()) == (torch.int64, 3)
    assert (found[0]["partials"].dtype, found[0]["partials"].numel()) == (torch.float32, 5)
    tickets = {values["ticket"] for values in found}
    assert len(tickets) == 100
    assert all(2**62 <= ticket < 2**63 for ticket in tickets)
    assert set(Scratch().allocate(torch.device("cpu")).values()) == {None}


def test_tickets_leave_the_random_numbers_of_a_program_alone():
    tickets = set()
    for _ in range(2):
        random.seed(0)
        tickets.add(Scratch(flags=1).allocate(torch.device("cpu"))["ticket"])
        after = random.getrandbits(62)
        random.seed(0)
        assert after == random.getrandbits(62)
    assert len(tickets) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"persistent": True}, "split_k must be 1 for persistent pointer kernels, got 4"),
        ({"split_k": 33, "block_k": 16}, "split_k must be in 1..32, got 33"),
        ({"split_k": 33, "block_k": 128}, "split_k must be in 1..32, got 33"),
        ({"split_k": 17, "block_k": 256}, "split_k must be in 1..16, got 17"),
        ({"block_n": 16, "split_k": 8}, "tiles x split_k must be <= 1056"),
        ({"block_m": 128, "block_n": 128, "num_warps": 4}, "a thread must add <= 64 partial sums"),
    ],
)
def test_what_can_not_be_split_has_a_reason(changes, reason):
    found = why_illegal(replace(SPLIT, **changes), DECODE, find_gpu("H200"))
    assert found is not None
    assert found.startswith(reason)


def test_large_grids_are_not_split():
    large = GemmProblem(4096, 4096, 4096, "bf16", "nt")
    searched = {"pointer": {"block_m": (64, 128), "block_n": (64, 128), "block_k": (64,),
                            "num_warps": (4,), "num_stages": (3,), "swizzle": ("row",),
                            "split_k": (1, 2, 3)}}  # fmt: skip
    assert {c.split_k for c in candidates(large, find_gpu("H200"), searched)} == {1}
    assert {c.split_k for c in candidates(DECODE, find_gpu("H200"), searched)} == {1, 2, 3}


@pytest.mark.kernel
def test_sums_are_released_and_acquired(target):
    for problem in (DECODE, GemmProblem(33, 77, 1001, "fp16", "tn")):
        config = replace(SPLIT, block_k=64)
        assert why_illegal(config, problem, target) is None
        assert compile_for(config, problem, target).spill_bytes == 0
        ptx = compiled(config, problem, target).asm["ptx"]
        assert re.search(r"atom\.global\.(?:gpu\.)?(?:release\.)?(?:gpu\.)?exch\.b64", ptx)
        assert "release" in ptx
        assert "acquire" in ptx
    assert "exch" not in compiled(replace(SPLIT, split_k=1), DECODE, target).asm["ptx"]


@pytest.mark.kernel
@pytest.mark.parametrize("target", ["A100-80GB", "H200", "B200"], indirect=True)
def test_the_widest_sums_fit_and_are_foreseen(target):
    """64 of a thread, beside those it adds: no spills, about the registers of the estimate."""
    problem = GemmProblem(256, 1024, 8192, "bf16", "nt")
    for changes in ({"block_m": 64, "block_n": 128}, {"block_m": 128, "num_warps": 8}):
        config = replace(SPLIT, **{"block_n": 128, "block_k": 32, "num_stages": 3} | changes)
        assert why_illegal(config, problem, target) is None
        found = compile_for(config, problem, target)
        assert found.spill_bytes == 0
        assert abs(estimate(config, problem, target).registers - found.registers) <= 32
