import math
import re
from dataclasses import replace

import numpy as np
import pytest

from autoswizzle.errors import ArgumentError
from autoswizzle.search.effort import EFFORTS, Effort, find_effort


def test_each_effort_spends_more_than_the_one_before():
    quick, standard, exhaustive = (EFFORTS[name] for name in ("quick", "standard", "exhaustive"))
    for field in ("trials", "seconds", "seeds", "screening_ms", "finalists", "final_ms"):
        values = [getattr(effort, field) for effort in (quick, standard, exhaustive)]
        assert values == sorted(values)
        assert values[0] < values[-1]
    assert quick.min_gain > standard.min_gain > exhaustive.min_gain == 0
    assert {effort.margin for effort in EFFORTS.values()} == {0.02}


def test_a_stated_budget_is_spent_in_full():
    standard = EFFORTS["standard"]
    by_trials = standard.with_budget(trials=7)
    assert (by_trials.trials, by_trials.seconds, by_trials.min_gain) == (7, math.inf, 0.0)
    by_seconds = standard.with_budget(seconds=90)
    assert by_seconds.trials > 10**5
    assert (by_seconds.seconds, by_seconds.min_gain) == (90.0, 0.0)
    both = standard.with_budget(trials=7, seconds=90)
    assert (both.trials, both.seconds) == (7, 90.0)
    assert standard.with_budget() is standard


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        ({"trials": 0}, "trials must be an integer of at least 1, got 0"),
        ({"trials": -3}, "got -3"),
        ({"trials": 2.5}, "got 2.5"),
        ({"trials": True}, "got True"),
        ({"seconds": 0}, "seconds must be a number above 0, got 0"),
        ({"seconds": math.nan}, "got nan"),
        ({"seconds": math.inf}, "got inf"),
        ({"seconds": 10**400}, "seconds must be a number above 0, got 1000"),
    ],
)
def test_an_illegal_budget_is_named(budget, named):
    with pytest.raises(ArgumentError, match=named):
        EFFORTS["quick"].with_budget(**budget)


def test_a_stated_margin_leaves_the_budget_alone():
    quick = EFFORTS["quick"]
    assert quick.with_margin(0.01) == replace(quick, margin=0.01)
    assert quick.with_margin(0).margin == 0
    assert quick.with_margin() is quick


def test_numpys_floats_are_numbers():
    quick = EFFORTS["quick"]
    assert quick.with_margin(np.float64(0.01)) == quick.with_margin(0.01)
    assert quick.with_budget(seconds=np.float64(3)) == quick.with_budget(seconds=3)
    with pytest.raises(ArgumentError, match="seconds must be a number above 0, got True"):
        quick.with_budget(seconds=True)


@pytest.mark.parametrize("margin", [-0.01, 1, 1.5, math.nan, math.inf, True, "0.01", [0.01]])
def test_an_illegal_margin_is_named(margin):
    message = f"margin must be a number from 0 to below 1, got {margin!r}"
    with pytest.raises(ArgumentError, match=re.escape(message)):
        EFFORTS["quick"].with_margin(margin)


def test_an_unknown_effort_lists_the_legal_ones():
    with pytest.raises(ArgumentError, match="one of quick, standard, exhaustive, got 'fast'"):
        find_effort("fast")
    assert isinstance(find_effort("quick"), Effort)
