"""cache/entry.py: round trip, checks, schema, unknown fields, which of two is better."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoswizzle.cache.entry import SCHEMA, CacheEntry
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import CacheError, SchemaError
from autoswizzle.search.effort import find_effort


def json_values(**bounds):
    numbers = st.integers() | st.floats(allow_nan=False, **bounds)
    return st.recursive(
        st.none() | st.booleans() | st.text() | numbers,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )


JSON, FINITE_JSON = json_values(), json_values(allow_infinity=False)


def test_round_trip(entry_for):
    entry = entry_for()
    assert CacheEntry.from_json(entry.to_json()) == entry


def test_the_text_shows_the_key_and_every_field(entry_for):
    data = json.loads(entry_for().to_json())
    assert data["schema"] == SCHEMA
    assert data["key"]["problem"]["dtype"] == "fp16"
    assert data["key"]["num_sms"] == 132
    assert data["versions"]["torch"] == "2.13.0"


@given(data=JSON)
def test_any_json_is_an_entry_or_a_cache_error(data):
    with pytest.raises(CacheError):
        CacheEntry.from_dict(data)


@pytest.mark.parametrize(
    "field",
    ["config", "time_us", "torch_us", "ratio", "trials", "date", "origin", "gpu", "key", "schema"],
)
@settings(max_examples=30)
@given(value=JSON)
def test_a_strange_field_never_raises_another_error(field, value, request):
    data = request.getfixturevalue("entry_for")().to_dict()
    try:
        entry = CacheEntry.from_dict({**data, field: value})
    except CacheError:
        return
    assert CacheEntry.from_json(entry.to_json()) == entry


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, True, "9"])
def test_times_are_finite_and_positive(entry_for, value):
    with pytest.raises(CacheError, match="time_us must be a finite number above 0"):
        CacheEntry.from_dict({**entry_for().to_dict(), "time_us": value})


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"schema": NaN}', "[" * 100_000, "\x00"])
def test_other_texts_are_refused(text):
    with pytest.raises(CacheError):
        CacheEntry.from_json(text)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_what_an_entry_could_not_be_written_with_is_not_read(entry_for, number):
    text = entry_for().to_json().rstrip("}\n") + f', "later": [{number}]}}'
    with pytest.raises(CacheError, match="is not a finite JSON number"):
        CacheEntry.from_json(text)


@pytest.mark.parametrize("schema", [None, SCHEMA - 1, 999, "1", True, 1.0])
def test_another_schema_names_both_versions(entry_for, schema):
    error = SchemaError if schema == 999 else CacheError
    with pytest.raises(error, match=f"schema must be {SCHEMA}, got {schema!r}") as raised:
        CacheEntry.from_dict({**entry_for().to_dict(), "schema": schema})
    assert raised.type is error


def test_unknown_fields_are_kept(entry_for):
    data = {**entry_for().to_dict(), "later": {"field": [1]}, "extra": 3}
    assert CacheEntry.from_dict(data).to_dict() == data


def test_an_unknown_config_field_is_not_obeyed(entry_for):
    data = entry_for().to_dict()
    data["config"]["cluster"] = 2
    with pytest.raises(CacheError, match=r"config field must be one of .* got 'cluster'"):
        CacheEntry.from_dict(data)


OURS = GemmConfig("wgmma", 128, 256, 64, swizzle="hilbert")


def kept_torch(entry_for, **changes):
    given = {"fastest": OURS, "fastest_ratio": 0.991, **changes}
    return entry_for(config=TORCH, ratio=1.0, ratio_low=None, ratio_high=None, **given)


def test_a_torch_entry_keeps_the_fastest_of_ours(entry_for):
    entry = kept_torch(entry_for)
    data = json.loads(entry.to_json())
    assert GemmConfig.from_dict(data["fastest"]) == OURS
    assert (data["fastest_ratio"], data["schema"]) == (0.991, 1)
    again = CacheEntry.from_json(entry.to_json())
    assert again == entry
    assert again.extra == {}
    assert not again.beats_torch


def test_entries_of_before_know_no_fastest_and_are_written_without(entry_for):
    for entry in (entry_for(), kept_torch(entry_for, fastest=None, fastest_ratio=None)):
        data = entry.to_dict()
        assert not {"fastest", "fastest_ratio"} & set(data)
        again = CacheEntry.from_dict(data)
        assert (again.fastest, again.fastest_ratio) == (None, None)
        assert again.to_dict() == data


@pytest.mark.parametrize(
    "changes",
    [
        {"fastest": {"kernel": "wgmma", "cluster_k": 2}},
        {"fastest": {"kernel": "cutlass"}},
        {"fastest": {"kernel": "torch"}},
        {"fastest": "wgmma"},
        {"fastest": None},
        {"fastest_ratio": None},
        {"fastest_ratio": -1.0},
        {"config": {"kernel": "pointer"}},
    ],
    ids=str,
)
def test_a_fastest_that_can_not_be_used_costs_no_verdict_and_is_kept(entry_for, changes):
    data = {**kept_torch(entry_for).to_dict(), **changes}
    entry = CacheEntry.from_dict(data)
    assert (entry.fastest, entry.fastest_ratio) == (None, None)
    assert entry.to_dict() == data
    known = {name: value for name, value in data.items() if not name.startswith("fastest")}
    assert entry == CacheEntry.from_dict(known)


@pytest.mark.parametrize("field", ["fastest", "fastest_ratio"])
@settings(max_examples=30)
@given(value=FINITE_JSON)
def test_a_strange_fastest_raises_no_error_at_all(field, value, request):
    data = {**kept_torch(request.getfixturevalue("entry_for")).to_dict(), field: value}
    entry = CacheEntry.from_dict(data)
    assert CacheEntry.from_json(entry.to_json()).to_dict() == entry.to_dict()
    if entry.fastest is None:
        assert entry.to_dict() == data


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fastest_ratio": None}, "fastest and fastest_ratio must go together, got wgmma"),
        ({"fastest": None}, "must go together, got None and 0.991"),
        ({"fastest_ratio": math.nan}, "fastest_ratio must be a finite number above 0, got nan"),
        ({"fastest": TORCH}, "fastest must be ours, and config torch, got torch"),
        ({"config": OURS}, "fastest must be ours, and config torch, got wgmma"),
    ],
)
def test_fastest_is_ours_with_its_ratio_beside_torch(entry_for, changes, named):
    with pytest.raises(CacheError, match=named):
        replace(kept_torch(entry_for), **changes)


@pytest.mark.parametrize("versions", [None, "unknown", 3])
def test_null_metadata_is_healed(entry_for, versions):
    entry = CacheEntry.from_dict({**entry_for().to_dict(), "versions": versions})
    assert entry.to_dict()["versions"] == {}


@pytest.mark.parametrize(
    ("changes", "beats"),
    [
        ({}, True),
        ({"ratio": 1.01, "ratio_low": 1.005}, False),
        ({"ratio": 1.05, "ratio_low": 0.99}, False),
        ({"ratio": None}, False),
        ({"config": TORCH}, False),
    ],
)
def test_beating_torch_needs_the_margin_beyond_noise(entry_for, changes, beats):
    assert entry_for(**changes).beats_torch is beats


def test_what_wins_a_search_by_its_default_margin_beats_torch(entry_for):
    needed = 1 + find_effort("standard").margin
    assert needed == 1.02
    assert entry_for(ratio=needed, ratio_low=1.01).beats_torch
    assert not entry_for(ratio=math.nextafter(needed, 0), ratio_low=1.01).beats_torch


@pytest.mark.parametrize(
    ("changes", "won"),
    [
        ({}, True),
        ({"ratio": 1.01, "ratio_low": 1.005}, True),
        ({"ratio": 1.01, "ratio_low": None}, True),
        ({"ratio": 1.0, "ratio_low": None}, False),
        ({"ratio": 1.05, "ratio_low": 0.99}, False),
        ({"ratio": None}, False),
        ({"config": TORCH}, False),
    ],
)
def test_winning_takes_no_more_than_an_interval_above_torch(entry_for, changes, won):
    assert entry_for(**changes).won is won


def test_the_better_measured_entry(entry_for):
    entry = entry_for()
    assert replace(entry, trials=41).better_than(entry)
    assert replace(entry, date="2027-01-01T00:00:00Z").better_than(entry)
    assert entry.better_than(replace(entry, trials=99, origin="predicted"))
    assert not entry.better_than(entry)


def test_of_two_tellings_of_one_measurement_the_one_that_tells_more_is_better(entry_for):
    more, less = kept_torch(entry_for), kept_torch(entry_for, fastest=None, fastest_ratio=None)
    assert more.better_than(less)
    assert not less.better_than(more)
    assert replace(less, trials=41).better_than(more)


@pytest.mark.parametrize("text", ["\x1b[31mred", "two\nlines", "\x00", "\u202eback"])
def test_text_that_would_not_print_as_one_line_is_refused(entry_for, text):
    data = entry_for().to_dict()
    for name in ("method", "effort", "date", "gpu"):
        with pytest.raises(CacheError, match=f"{name} must be a printable text, got"):
            CacheEntry.from_dict({**data, name: text})
    for name in ("vendor", "triton", "source"):
        with pytest.raises(CacheError, match=f"key field {name} must be printable, got"):
            CacheEntry.from_dict({**data, "key": {**data["key"], name: text}})
