import random
from collections import Counter
from dataclasses import replace

import pytest

from autoswizzle import space
from autoswizzle.config import GROUPED_SWIZZLES, TORCH, GemmConfig
from autoswizzle.errors import ArgumentError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.plan import spread
from autoswizzle.search.sampling import SAMPLERS, Proposer, SearchSpace
from autoswizzle.simulator.resources import estimate, why_infeasible
from autoswizzle.space import families

PROBLEM = GemmProblem(4096, 4096, 4096, "bf16", "nt")
GPU = find_gpu("H200")
POINTER = {
    **space.branches(PROBLEM, GPU)["pointer"],
    "block_k": (32, 64),
    "num_stages": (3, 4),
}
SPACE = SearchSpace(PROBLEM, GPU, {"pointer": POINTER})


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_proposals_are_legal_and_new(sampler):
    proposer = Proposer(SPACE, sampler, 1)
    taken = set()
    for turn in range(25):
        config = proposer.propose(taken)
        assert config not in taken
        assert space.why_illegal(config, PROBLEM, GPU) is None
        assert why_infeasible(estimate(config, PROBLEM, GPU), GPU) is None
        taken.add(config)
        proposer.learn(config, 100.0 + turn if turn % 3 else None)


def test_a_seed_repeats_its_proposals_and_another_does_not():
    def first_ten(seed):
        proposer, taken = Proposer(SPACE, "tpe", seed), set()
        for _ in range(10):
            taken.add(proposer.propose(taken))
        return taken

    assert first_ten(3) == first_ten(3)
    assert len(first_ten(3) & first_ten(4)) <= 1


@pytest.mark.parametrize("open_first", [True, False])
def test_the_sampler_goes_where_times_are_short(open_first):
    """open_first: the configurations were its own proposals, not those of an earlier run."""

    def time_of(config):
        return 100.0 if config.block_m == 128 and config.block_n == 256 else 1000.0

    proposer, taken = Proposer(SPACE, "tpe", 5), set()
    source = proposer if open_first else Proposer(SPACE, "random", 6)
    for _ in range(80):
        config = source.propose(taken)
        taken.add(config)
        proposer.learn(config, time_of(config))
    late = []
    for _ in range(30):
        config = proposer.propose(taken)
        taken.add(config)
        proposer.learn(config, time_of(config))
        late.append(time_of(config))
    share = sum(time_us == 100 for time_us in late) / 30
    everywhere = list(SPACE.configs())
    by_chance = sum(time_of(config) == 100 for config in everywhere) / len(everywhere)
    assert share > 3 * by_chance


def test_torch_and_foreign_values_are_learnt_without_harm():
    proposer = Proposer(SPACE, "tpe", 5)
    proposer.learn(TORCH, 10.0)
    proposer.learn(GemmConfig(group_size=7), 10.0)
    proposer.learn(GemmConfig(kernel="mma_sync"), None)
    assert proposer.propose(set()) is not None


def test_an_unknown_sampler_lists_the_legal_ones():
    with pytest.raises(ArgumentError, match="one of tpe, gp, random, got 'cma'"):
        Proposer(SPACE, "cma", 0)


def test_group_size_is_in_play_only_for_grouped_orders():
    proposer, taken = Proposer(SPACE, "random", 2), set()
    for _ in range(200):
        taken.add(proposer.propose(taken))
    sizes = {True: Counter(), False: Counter()}
    for config in taken:
        sizes[config.swizzle in GROUPED_SWIZZLES][config.group_size] += 1
    assert set(sizes[False]) == {8}
    assert len(sizes[True]) > 5


def test_neighbours_differ_in_one_tunable():
    generator = random.Random(1)
    config = GemmConfig(block_n=64)
    names = set()
    for _ in range(300):
        other = SPACE._neighbour(config, generator)
        changed = {
            name for name in GemmConfig.__slots__ if getattr(config, name) != getattr(other, name)
        }
        assert changed <= {"swizzle", "group_size"} or len(changed) <= 1
        names |= changed
    assert names == set(POINTER)


def test_the_reason_for_being_outside_names_field_and_values():
    small = SearchSpace(PROBLEM, GPU, {"pointer": {**POINTER, "block_m": (64,)}})
    assert small.why_outside(GemmConfig(block_m=64)) is None
    assert small.why_outside(TORCH) is None
    assert small.why_outside(small.default) is None
    assert small.default.block_m == 128
    assert "block_m must be one of 64, got 256" in small.why_outside(GemmConfig(block_m=256))
    assert "must be a power of two" in small.why_outside(GemmConfig(block_m=512))
    assert {config.block_m for config in small.configs() if config != small.default} == {64}


def test_restricted_group_sizes_leave_the_other_orders_alone():
    small = SearchSpace(PROBLEM, GPU, {"pointer": {**POINTER, "group_size": (1, 2)}})
    row = GemmConfig(block_k=64, swizzle="row")
    assert small.why_outside(row) is None
    assert "group_size must be one of 1, 2, got 4" in small.why_outside(
        GemmConfig(block_k=64, group_size=4)
    )
    assert "pointer.group_size" not in small.as_trial(row, 1.0).params
    assert "pointer.group_size" in small.as_trial(GemmConfig(group_size=2), 1.0).params


def test_the_best_of_each_family_is_among_the_seeds():
    ranked = [GemmConfig("pointer", group_size=size) for size in range(1, 30)]
    ranked.insert(12, GemmConfig("tma"))
    ranked.insert(20, GemmConfig("wgmma"))
    chosen = spread(ranked, 5)
    assert chosen == [*ranked[:3], ranked[12], ranked[20]]
    assert spread(ranked, 2) == [ranked[0], ranked[12]]
    assert spread(ranked, 0) == []
    assert spread(ranked, 100) == ranked
    assert spread([], 5) == []


def test_proposals_of_a_large_space_need_no_list_of_it(monkeypatch):
    searched = SearchSpace(PROBLEM, GPU)

    def listed(self, kernel):
        raise AssertionError("hundreds of thousands were listed")

    monkeypatch.setattr(SearchSpace, "configs", listed)
    proposer, taken = Proposer(searched, "random", 4), set()
    for _ in range(150):
        taken.add(proposer.propose(taken))
    assert len(taken) == 150
    assert all(searched.is_worth_trying(config) for config in taken)
    assert {config.kernel for config in taken} == set(searched.branches)


COOPERATIVE = GemmConfig(
    "wgmma", 128, 128, 64, num_stages=4, persistent=True, epilogue_subtile=4,
    warp_specialize="cooperative",
)  # fmt: skip


def test_what_can_not_be_used_keeps_most_of_its_values():
    """Of a proposal with too few rows for its warps, all but that can be had."""
    searched = SearchSpace(PROBLEM, GPU)
    legal = replace(COOPERATIVE, block_n=256)
    proposed = replace(legal, block_m=64, swizzle="hilbert", stream_k=True, num_stages=3)
    assert not searched.is_worth_trying(proposed)
    found = searched.near(proposed, {legal}, random.Random(1))
    assert searched.is_worth_trying(found)
    assert (found.swizzle, found.num_stages, found.block_n) == ("hilbert", 3, 256)


def test_values_that_are_legal_together_only_are_had_together():
    """160 columns need 5 or 10 slices, which no other tile has."""
    searched = SearchSpace(PROBLEM, GPU)
    proposed = replace(COOPERATIVE, block_m=64, block_n=160, epilogue_subtile=5)
    assert not searched.is_worth_trying(proposed)  # too few rows for its warps
    for seed in range(5):
        found = searched.near(proposed, {COOPERATIVE}, random.Random(seed))
        assert (found.block_n, found.epilogue_subtile) == (160, 5)


def test_what_is_near_does_not_depend_on_the_order_of_what_is_taken():
    """A seed repeats its proposals in another process, where a set's order is another."""
    searched = SearchSpace(PROBLEM, GPU)
    proposer, taken = Proposer(searched, "random", 4), []
    for _ in range(20):
        taken.append(proposer.propose(taken))
    for config in taken[-5:]:
        unusable = replace(config, num_stages=9)
        near = [searched.near(unusable, order, random.Random(1)) for order in (taken, taken[::-1])]
        assert near[0] == near[1]


def test_a_family_that_the_compiler_can_not_make_is_not_in_the_space(monkeypatch):
    monkeypatch.setattr(families, "triton_version", lambda: (3, 6))
    assert "multicast" not in SearchSpace(PROBLEM, GPU).branches
    monkeypatch.setattr(families, "triton_version", lambda: (3, 9))
    assert "multicast" in SearchSpace(PROBLEM, GPU).branches
    monkeypatch.setattr(families, "triton_version", lambda: (3, 5))
    assert SearchSpace(PROBLEM, GPU).branches == {}


def test_families_that_take_no_such_operands_are_not_in_the_space():
    """The sampler would learn nothing of them, and so propose them again and again."""
    spelled = {
        "2000x2001x2001:bf16:nn": {"pointer", "tma", "wgmma"},
        "2048x2048x2048:bf16:nn": {"pointer", "tma", "wgmma", "mma_sync"},
        "2048x2048x2048:fp32:nt": {"pointer", "tma"},
        "2048x2048x2048:fp32:nn:tf32": {"pointer", "tma"},
        "2048x2048x2048:fp32:nt:tf32": {"pointer", "tma", "wgmma"},
    }
    for text, able in spelled.items():
        found = set(SearchSpace(GemmProblem.parse(text), GPU).branches)
        assert found - {"multicast"} == able, text


def test_a_small_family_is_used_up_before_others_are_listed(monkeypatch):
    """A walk finds few of the last ones of gemv; they are listed, and not all the space is."""
    searched = SearchSpace(GemmProblem(4, 4096, 4096, "fp32", "nn"), GPU)
    mine = set(searched.configs("gemv"))
    proposer, listed = Proposer(searched, "random", 4), []
    monkeypatch.setattr(searched, "near", lambda *_: None)
    configs = searched.configs
    monkeypatch.setattr(
        searched, "configs", lambda kernel: listed.append(kernel) or configs(kernel)
    )
    first = next(iter(mine))
    monkeypatch.setattr(searched, "suggest", lambda _: first)
    taken = {first}
    while taken != mine:
        taken.add(proposer.propose(taken))
    assert listed == ["gemv"]
    assert proposer.propose(taken).kernel != "gemv"
