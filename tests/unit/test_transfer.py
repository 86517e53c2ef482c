"""Which configurations of like problems a search starts from."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import LAYOUTS, GemmProblem
from autoswizzle.search.sampling import SearchSpace
from autoswizzle.space import candidates, why_illegal
from autoswizzle.transfer import KNOWN, known_configs

H200 = find_gpu("H200")
PROBLEM = GemmProblem(4096, 6144, 4096, "bf16", "nt")
LEGAL = list(islice(candidates(PROBLEM, H200), 12))
A, B, C, D, E, F = LEGAL[::2]


@pytest.fixture
def known(entry_for):
    """What is known for a problem from {problem: config}, or from entries."""

    def answer(found, count=KNOWN, problem=PROBLEM):
        if isinstance(found, dict):
            found = [entry_for(problem, config=config) for problem, config in found.items()]
        return known_configs(problem, H200, iter(found), count)

    return answer


def test_the_nearest_come_first(known):
    """By hand: 3, 1, 0.58 (log2 of 1.5), 0, 2.58 and 3 + 0.58 doublings away."""
    found = {
        "4096x6144x512:bf16:nt": A,
        "8192x6144x4096:bf16:nt": B,
        "4096x4096x4096:bf16:nt": C,
        "4096x6144x4096:bf16:nt": D,
        "1024x4096x4096:bf16:nt": E,
        "8x4096x4096x4096:bf16:nt": F,
    }
    assert known(found) == [D, C, B, E]
    assert known(found, 6) == [D, C, B, E, A, F]
    assert known(found, 2) == [D, C]
    assert known(found, 0) == []


def test_another_dtype_is_nearer_than_another_layout_nearer_than_another_size(known):
    found = {
        "2048x6144x4096:bf16:nt": A,
        "4096x6144x4096:fp16:nn": B,
        "4096x6144x4096:bf16:tt": C,
        "4096x6144x4096:fp16:nt": D,
    }
    assert known(found) == [D, C, B, A]


@pytest.mark.parametrize(
    ("far", "near"),
    [
        ("256x6144x4096:bf16:nt", "264x6144x4096:bf16:nt"),
        ("1024x3072x8192:bf16:nt", "1024x3072x4096:bf16:nt"),
        ("384x6144x4096:fp16:nn", "384x6144x4096:bf16:nn"),
    ],
)
def test_what_is_far_is_not_tried(known, far, near):
    """Four doublings of one extent, of three together, and 3.4 of another dtype and layout."""
    assert known({far: A, near: B}) == [B]


def test_elements_of_another_size_or_precision_are_another_matter(known):
    texts = ["4096x6144x4096:bf16:nt", "4096x6144x4096:fp32:nt", "4096x6144x4096:fp32:nt:tf32"]
    problems = list(map(GemmProblem.parse, texts))
    for problem in problems:
        for other in problems:
            expected = [A] if other == problem else []
            assert known({str(other.with_m(2048)): A}, problem=problem) == expected


def test_only_what_a_kernel_of_ours_won_by_measurement_on_this_gpu_counts(known, entry_for):
    own = str(PROBLEM)
    other = find_gpu("H100 SXM")
    assert other.capability == H200.capability
    assert known([entry_for(own, config=A, gpu=other)]) == []
    assert known([entry_for(own, config=TORCH)]) == []
    assert known([entry_for(own, config=A, origin="predicted")]) == []


def test_what_was_fastest_of_ours_where_torch_was_kept_is_an_idea(known, entry_for):
    """Nearer than another's winner before it, as near behind it: by hand 0, 1, 1 and 2."""

    def lost(problem, config):
        return entry_for(problem, config=TORCH, fastest=config, fastest_ratio=0.99)

    first, last = sorted((B, C), key=str)
    found = [
        lost("2048x6144x4096:bf16:nt", first),
        entry_for("8192x6144x4096:bf16:nt", config=last),
        entry_for("1024x6144x4096:bf16:nt", config=D),
        lost("4096x6144x4096:bf16:nt", A),
    ]
    assert known(found) == [A, last, first, D]
    far = replace(lost(str(PROBLEM), E), origin="predicted")
    assert known([far]) == []


def test_equally_far_is_so_in_every_direction(known, entry_for):
    """1.5 times more and fewer columns: log2 of the one is a bit off that of the other."""
    less, more = sorted((B, C), key=str)
    found = [
        entry_for("4096x9216x4096:bf16:nt", config=TORCH, fastest=less, fastest_ratio=0.99),
        entry_for("4096x4096x4096:bf16:nt", config=more),
    ]
    turned = [
        entry_for("4096x4096x4096:bf16:nt", config=TORCH, fastest=less, fastest_ratio=0.99),
        entry_for("4096x9216x4096:bf16:nt", config=more),
    ]
    assert known(found) == known(turned) == [more, less]


def test_entries_of_other_sources_and_compilers_are_ideas_too(known, entry_for):
    found = [
        entry_for("2048x6144x4096:bf16:nt", config=A, source="old", triton=(3, 5)),
        entry_for(str(PROBLEM), config=B, source="older", triton=None),
    ]
    assert known(found) == [B, A]


def test_a_configuration_counts_once(known):
    found = {
        "2048x6144x4096:bf16:nt": A,
        "4096x6144x4096:bf16:nt": A,
        "8192x6144x4096:bf16:nt": B,
    }
    assert known(found, 2) == [A, B]


def test_what_is_illegal_or_outside_the_space_leaves_its_place_to_the_next(known, caplog):
    illegal = GemmConfig("gemv", block_m=1)
    outside = GemmConfig(block_m=16, block_n=16, num_stages=7)
    searched = SearchSpace(PROBLEM, H200)
    assert why_illegal(illegal, PROBLEM, H200) is not None
    assert why_illegal(outside, PROBLEM, H200) is None
    assert searched.why_outside(outside) is not None
    found = {
        "4096x6144x4096:bf16:nt": illegal,
        "4096x6144x4096:fp16:nt": outside,
        "2048x6144x4096:bf16:nt": A,
    }
    assert known(found, 1) == [A]
    assert caplog.records == []


ENTRIES = st.builds(
    lambda m, n, layout, dtype, config: CacheEntry(
        key_for(GemmProblem(m, n, 4096, dtype, layout), H200), config, 1.0
    ),
    st.sampled_from((512, 2048, 4096, 8192)),
    st.sampled_from((3072, 6144, 12288)),
    st.sampled_from(LAYOUTS),
    st.sampled_from(("bf16", "fp16")),
    st.sampled_from([*LEGAL, TORCH, GemmConfig("gemv", block_m=1)]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, max_size=12), st.randoms(use_true_random=False))
def test_the_entries_order_is_of_no_account_and_fewer_are_the_first_of_more(entries, random):
    shuffled = random.sample(entries, len(entries))
    everything = known_configs(PROBLEM, H200, entries, 100)
    assert known_configs(PROBLEM, H200, shuffled, 100) == everything
    assert known_configs(PROBLEM, H200, shuffled, 3) == everything[:3]
    assert len(set(everything)) == len(everything)
    assert set(everything) <= {entry.config for entry in entries} & set(LEGAL)
