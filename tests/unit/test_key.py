"""cache/key.py: what a key holds, its digests and its file name."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoswizzle.cache.key import CacheKey, key_for
from autoswizzle.errors import CacheError
from autoswizzle.hardware import CATALOGUE, DeviceFacts, find_gpu, gpu_from_facts
from autoswizzle.problem import ITEMSIZE, LAYOUTS, GemmProblem

H200 = find_gpu("H200")
PROBLEM = GemmProblem(64, 128, 256, "fp32", "nt")
KEY = key_for(PROBLEM, H200, "aaaa", (3, 6))
EXTENT = st.integers(1, 2**31 - 1)
PROBLEMS = st.builds(
    GemmProblem,
    m=EXTENT,
    n=EXTENT,
    k=EXTENT,
    batch=st.integers(1, 99),
    dtype=st.sampled_from(list(ITEMSIZE)),
    layout=st.sampled_from(LAYOUTS),
    aligned=st.sampled_from([None, True, False]),
)
KEYS = st.builds(
    key_for,
    PROBLEMS,
    st.sampled_from(CATALOGUE),
    st.text(st.characters(categories=["L", "N", "P", "S"])),
    st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
CHANGES = {
    "vendor": "amd",
    "capability": 100,
    "num_sms": 114,
    "l2_bytes": 1,
    "shared_bytes": 2,
    "triton": "3.7",
    "source": "bbbb",
}
PROBLEM_CHANGES = {
    "m": 65,
    "n": 129,
    "k": 257,
    "batch": 2,
    "dtype": "fp16",
    "out_dtype": "fp16",
    "layout": "nn",
    "precision": "tf32",
    "aligned": False,
}


def test_the_changes_cover_every_field():
    assert set(CHANGES) | set(PROBLEM_CHANGES) | {"epilogue"} == set(KEY.flat())


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_every_gpu_and_version_field_counts(name, value):
    other = replace(KEY, **{name: value})
    assert other.digest != KEY.digest
    assert other.file_name != KEY.file_name
    assert (other.stem == KEY.stem) == (name == "source")


@pytest.mark.parametrize(("name", "value"), PROBLEM_CHANGES.items())
def test_every_problem_field_counts(name, value):
    other = replace(KEY, problem=replace(PROBLEM, **{name: value}))
    assert other.digest != KEY.digest
    assert other.file_name != KEY.file_name
    assert (other.stem == KEY.stem) == (name == "m")


def test_the_marketing_name_does_not_count():
    renamed = replace(H200, name="NVIDIA H200 (renamed by a driver)")
    assert key_for(PROBLEM, renamed, "aaaa", (3, 6)) == KEY


@pytest.mark.parametrize("name", ["A/B ../x", "GPU é", "x" * 300, ""])
def test_no_name_reaches_the_file_name(name):
    assert key_for(PROBLEM, replace(H200, name=name), "aaaa", (3, 6)).file_name == KEY.file_name


def test_variants_of_one_chip_differ():
    facts = [(132, 50), (114, 50), (60, 25)]  # H100 SXM, PCIe, MIG 3g: SMs, L2 MiB
    keys = {
        key_for(PROBLEM, gpu_from_facts(DeviceFacts("NVIDIA H100", 90, sms, mib * 2**20))).stem
        for sms, mib in facts
    }
    assert len(keys) == 3


@given(KEYS)
def test_round_trip(key):
    assert CacheKey.from_dict(key.to_dict()) == key


@given(KEYS)
def test_file_names_are_short_plain_and_inside_the_folder(key):
    assert len(key.file_name) <= 160
    assert all(char.isascii() and (char.isalnum() or char in "-.") for char in key.file_name)
    assert not key.file_name.startswith(".")


@given(KEYS, KEYS)
def test_digests_are_equal_exactly_when_keys_are(one, other):
    assert (one.digest == other.digest) == (one == other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_sms": "132"}, "num_sms must be of type int"),
        ({"num_sms": True}, "num_sms must be of type int"),
        ({"triton": 3.6}, "triton must be of type str"),
        ({"problem": None}, "problem must have the fields"),
        ({"problem": {**PROBLEM.to_dict(), "dtype": 5}}, "dtype must be one of"),
        ({"problem": {**PROBLEM.to_dict(), "m": 10**400}}, "m must be an integer"),
        ({"extra": 1}, "key must have the fields"),
    ],
)
def test_an_illegal_field_is_named(change, words):
    with pytest.raises(CacheError, match=words):
        CacheKey.from_dict({**KEY.to_dict(), **change})


@pytest.mark.parametrize("data", [None, [], "key", {}])
def test_other_things_than_a_key_are_refused(data):
    with pytest.raises(CacheError, match="key must have the fields"):
        CacheKey.from_dict(data)


def test_without_triton_the_key_says_so():
    assert key_for(PROBLEM, H200).triton == ""
