"""Tables, grids and JSON."""

import json
import math

import pytest

from autoswizzle.report.tables import byte_size, fields, grid, print_json, table


def test_text_goes_left_and_numbers_right():
    drawn = table(("name", "us"), [("a", 1.5), ("long name", 12345.678)])
    assert drawn.splitlines() == [
        "name             us",
        "a             1.500",
        "long name  12,345.7",
    ]


def test_missing_and_boolean_cells_are_words():
    assert table(("a", "b"), [(None, True)]).splitlines()[1].split() == ["-", "yes"]


def test_an_empty_table_is_its_titles():
    assert table(("a", "bb"), []) == "a  bb"


def test_fields_align_their_values():
    assert fields([("a", 1), ("long", "x")]) == "a     1\nlong  x"


def test_grid_cells_align():
    assert grid([[0, 10], [5, 100]]) == "  0  10\n  5 100"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.000 kB"),
        (1_459_617_792, "1.460 GB"),
        (2e18, "2000.000 PB"),
    ],
)
def test_byte_size(count, text):
    assert byte_size(count) == text


def test_json_round_trips_and_refuses_what_json_cannot_say(capsys):
    data = {"a": [1, 2.5, None, "é"], "b": True}
    print_json(data)
    assert json.loads(capsys.readouterr().out) == data
    with pytest.raises(ValueError, match="Out of range float"):
        print_json({"a": math.nan})
