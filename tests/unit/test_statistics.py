import math
import random
import sys
from statistics import mean, median

import numpy as np
import pytest
import scipy.stats

from autoswizzle.errors import LaunchError
from autoswizzle.search.statistics import (
    checked,
    drift,
    expected_gain,
    is_number,
    median_interval,
)

HUGE = [pytest.param(sign * 10**400, id=f"{sign} huge") for sign in (1, -1)]
NO_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "1", None, [1.0], *HUGE]


@pytest.mark.parametrize("value", [0, -1.5, np.float64(2), sys.float_info.max, -sys.float_info.max])
def test_what_a_float_holds_is_a_number(value):
    assert is_number(value)


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_no_float_holds_is_none(value):
    assert not is_number(value)


@pytest.mark.parametrize("value", [0.0, -1.0, *NO_NUMBERS])
def test_impossible_durations_are_refused(value):
    with pytest.raises(LaunchError, match="finite and above 0") as caught:
        checked([3.0, value])
    assert caught.value.kind == "InvalidDuration"


def test_no_samples_are_refused():
    with pytest.raises(LaunchError, match="no samples"):
        checked([])


@pytest.mark.parametrize("count", [6, 7, 8, 20, 51, 250, 2000])
def test_the_interval_is_the_narrowest_of_order_statistics_with_95_percent(count):
    low_rank = int(scipy.stats.binom.ppf(0.025, count, 0.5))  # 1-based rank of the lower end
    samples = random.Random(1).sample(range(1, count + 1), count)
    assert median_interval(samples) == (median(samples), low_rank, count + 1 - low_rank)


def test_few_samples_give_their_extremes():
    assert median_interval([5.0]) == (5.0, 5.0, 5.0)
    assert median_interval([9.0, 1.0, 2.0]) == (2.0, 1.0, 9.0)


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    generator = random.Random(2)
    hits = 0
    for _ in range(2000):
        _, low, high = median_interval([generator.expovariate(1) for _ in range(25)])
        hits += low <= math.log(2) <= high
    assert 0.94 < hits / 2000 < 0.98  # 0.957 exactly, for the ranks of 25 samples


def test_drift_compares_the_first_with_the_last_quarter():
    assert drift([100.0] * 8) == 0
    assert drift([100, 100, 50, 50, 50, 50, 110, 110]) == pytest.approx(0.1)
    assert drift([7.0]) == 0


@pytest.mark.parametrize(
    ("times", "remaining", "gain"),
    [
        ([120, 110, 115, 130, 100, 105, 104, 103], 8, 0.1),  # a doubling, as the last: 110 to 100
        ([120, 110, 115, 130, 100, 105, 104, 103], 24, 0.2),  # two of them
        ([100, 110, 120, 105, 101, 102, 103, 104], 1000, 0.0),  # the second half bought nothing
        ([120, 110, 110, 110, 100, 105, 104, 103, 102], 9, 0.1),  # the first half of nine is four
        ([5.0] * 8, 100, 0.0),
        ([120, 110, 115, 130, 100, 105, 104, 103], 0, 0.0),
        ([5.0] * 7, 100, math.inf),
        ([], 100, math.inf),
    ],
)
def test_the_next_doubling_is_expected_to_buy_what_the_last_did(times, remaining, gain):
    assert expected_gain(times, remaining) == pytest.approx(gain)


def test_expected_gain_foretells_a_random_search():
    generator = random.Random(3)
    draws = [[generator.lognormvariate(0, 0.3) for _ in range(60)] for _ in range(2000)]
    real = mean(min(times[:30]) / min(times) - 1 for times in draws)
    said = mean(expected_gain(times[:30], 30) for times in draws)
    assert 0.7 < said / real < 2  # it assumes that a doubling buys as much as the one before
