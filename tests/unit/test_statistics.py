import math
import random
from itertools import permutations
from statistics import mean, median

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from autoswizzle.errors import LaunchError
from autoswizzle.search.statistics import checked, drift, expected_gain, median_interval


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
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


@given(st.lists(st.floats(1, 100), min_size=2, max_size=7))
def test_expected_gain_is_what_the_second_half_bought_over_all_orders(times):
    # Each time falls into the first half with probability 1/2, in its own right; the formula leaves
    # out the orders with an empty first half, of probability 2^-n.
    best = min(times)
    total = 0.0
    for mask in range(1, 2 ** len(times)):
        half = [time for place, time in enumerate(times) if mask >> place & 1]
        total += min(half) / best - 1
    assert expected_gain(times, len(times)) == pytest.approx(total / 2 ** len(times), abs=1e-9)


def test_expected_gain_shrinks_with_the_budget_left_and_grows_with_the_spread():
    flat, steep = [100, 101, 102, 103], [100, 150, 200, 300]
    assert expected_gain(flat, 4) < expected_gain(steep, 4)
    assert expected_gain(steep, 1) < expected_gain(steep, 4) < expected_gain(steep, 40)
    assert expected_gain(steep, 0) == 0
    assert expected_gain([5.0, 5.0], 100) == 0
    assert expected_gain([5.0], 100) == math.inf


def test_expected_gain_foretells_a_random_search():
    generator = random.Random(3)
    draws = [[generator.lognormvariate(0, 0.3) for _ in range(60)] for _ in range(500)]
    real = mean(min(times[:30]) / min(times) - 1 for times in draws)
    said = mean(expected_gain(times[:30], 30) for times in draws)
    assert 0.7 < said / real < 2  # it assumes that a doubling buys as much as the one before


def test_order_does_not_matter_to_expected_gain():
    times = [3.0, 1.0, 2.0]
    assert len({expected_gain(order, 5) for order in permutations(times)}) == 1
