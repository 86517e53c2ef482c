"""cache/entry.py: round trip, checks, schema, unknown fields, which of two is better."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoswizzle.cache.entry import SCHEMA, CacheEntry
from autoswizzle.config import TORCH
from autoswizzle.errors import CacheError, SchemaError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


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


def test_the_better_measured_entry(entry_for):
    entry = entry_for()
    assert replace(entry, trials=41).better_than(entry)
    assert replace(entry, date="2027-01-01T00:00:00Z").better_than(entry)
    assert entry.better_than(replace(entry, trials=99, origin="predicted"))
    assert not entry.better_than(entry)


@pytest.mark.parametrize("text", ["\x1b[31mred", "two\nlines", "\x00", "\u202eback"])
def test_text_that_would_not_print_as_one_line_is_refused(entry_for, text):
    data = entry_for().to_dict()
    for name in ("method", "effort", "date", "gpu"):
        with pytest.raises(CacheError, match=f"{name} must be a printable text, got"):
            CacheEntry.from_dict({**data, name: text})
    for name in ("vendor", "triton", "source"):
        with pytest.raises(CacheError, match=f"key field {name} must be printable, got"):
            CacheEntry.from_dict({**data, "key": {**data["key"], name: text}})
