import json
import math
import random
from dataclasses import replace

import pytest

from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import ArgumentError, LaunchError
from autoswizzle.search.finals import Final, finalists, run_final
from autoswizzle.search.measure import Measurement, Race
from autoswizzle.search.statistics import median_interval
from autoswizzle.search.timing import LONG, SHORT

OURS = [GemmConfig(block_m=size) for size in (16, 32, 64, 128, 256)]


def measurement(config, time_us):
    return Measurement(config, time_us, time_us, time_us, "sustained")


def race_of(times, noise=0.003):
    """A race with these true times and noise, different at each seed."""
    seeds = []

    def race(configs, seed, turn=SHORT):
        seeds.append((seed, turn))
        generator = random.Random(seed)
        rounds = []
        for config in configs:
            true = times[config](seed) if callable(times[config]) else times[config]
            rounds.append(tuple(true * generator.gauss(1, noise) for _ in range(30)))
        summaries = [
            Measurement(config, *median_interval(item), "sustained")
            for config, item in zip(configs, rounds, strict=True)
        ]
        return Race(tuple(summaries), tuple(rounds))

    race.seeds = seeds
    return race


@pytest.mark.parametrize(
    ("ours_us", "wins"),
    [(90, True), (97, True), (99, False), (100, False), (120, False)],
)
def test_ours_wins_only_by_the_margin_beyond_noise(ours_us, wins):
    race = race_of({OURS[0]: 130.0, OURS[1]: float(ours_us), TORCH: 100.0})
    final = run_final(OURS[:2], race, margin=0.02)
    assert final.fastest == OURS[1]
    assert final.ratio == pytest.approx(100 / ours_us, rel=0.005)
    assert final.ratio_low < final.ratio < final.ratio_high
    assert final.winner == (OURS[1] if wins else TORCH)
    assert final.measurement.config == final.winner
    assert [item.config for item in final.contenders] == [*OURS[:2], TORCH]
    assert [item.config for item in final.confirmed] == [OURS[1], TORCH]


@pytest.mark.parametrize("margin", [0.0, 0.005, 0.01, 0.02])
def test_a_margin_decides_what_was_raced_as_it_would_have_before(margin):
    """Ours is 1 % faster, give or take a tenth of that."""
    race = race_of({OURS[0]: 99.0, TORCH: 100.0})
    final = run_final(OURS[:1], race, margin=margin)
    assert final.winner == (OURS[0] if margin < 0.01 else TORCH)
    for before in (0.0, 0.9):
        assert final.judged(before).judged(margin) == final


def test_a_gain_that_noise_could_explain_is_no_win():
    def race(configs, seed, turn=SHORT):
        rounds = ((90.0,) * 18 + (101.0,) * 12, (100.0,) * 30)  # faster in 18 rounds of 30
        pairs = zip(configs, (90.0, 100.0), strict=True)
        return Race(tuple(measurement(*pair) for pair in pairs), rounds)

    final = run_final(OURS[:1], race, margin=0.02)
    assert final.ratio == pytest.approx(100 / 90)
    assert final.ratio_low == pytest.approx(100 / 101)
    assert final.winner == TORCH


def test_a_lucky_first_race_is_not_believed():
    race = race_of({OURS[0]: lambda seed: 80.0 if seed == 1 else 100.0, TORCH: 100.0})
    final = run_final(OURS[:1], race, margin=0.02)
    assert final.contenders[0].time_us < 81
    assert final.winner == TORCH
    assert race.seeds == [
        (1, SHORT),
        (2, SHORT),
    ]  # fresh inputs each time, other than the screening's


def drawing(at_one_clock, alone):
    """Races with these times while contenders share a clock, and others at their own clocks."""
    short, long = race_of(at_one_clock), race_of(alone)
    return lambda configs, seed, turn: (short if turn == SHORT else long)(configs, seed, turn)


ONE_CLOCK = {OURS[0]: 90.0, OURS[1]: 94.0, OURS[2]: 97.0, OURS[3]: 103.0, TORCH: 100.0}


@pytest.mark.parametrize(
    ("alone", "fastest", "wins"),
    [
        ({}, 0, True),
        ({OURS[0]: 100.0}, 0, True),  # as fast as torch, within noise
        ({OURS[0]: 105.0}, 1, True),
        ({OURS[0]: 105.0, OURS[1]: 104.0}, 1, False),  # the third is not tried
        ({OURS[0]: 104.0, OURS[1]: 105.0}, 0, False),
    ],
    ids=["none", "as fast", "one", "both", "both otherwise"],
)
def test_what_draws_more_power_must_be_faster_at_its_own_clock_too(alone, fastest, wins):
    times = ONE_CLOCK | alone
    final = run_final(OURS[:3], drawing(ONE_CLOCK, times), 0.02)
    assert final.fastest == OURS[fastest]
    assert final.ratio == pytest.approx(100 / ONE_CLOCK[OURS[fastest]], rel=0.005)
    assert final.own[0] == pytest.approx(100 / times[OURS[fastest]], rel=0.005)
    assert final.winner == (OURS[fastest] if wins else TORCH)
    assert final.judged(0.0) == final  # by no margin either
    assert Final.from_dict(json.loads(json.dumps(final.to_dict()))) == final


def test_one_slower_alone_makes_no_room_for_one_slower_than_torch():
    times = ONE_CLOCK | {OURS[0]: 105.0}
    final = run_final([OURS[0], OURS[3]], drawing(ONE_CLOCK, times), 0.02)
    assert (final.fastest, final.winner) == (OURS[0], TORCH)


def test_what_is_slower_than_torch_is_not_raced_at_its_own_clock():
    race = race_of(ONE_CLOCK)
    final = run_final([OURS[3]], race, 0.02)
    assert (final.fastest, final.winner, final.own) == (OURS[3], TORCH, None)
    assert race.seeds == [(1, SHORT), (2, SHORT)]
    earlier = {name: value for name, value in final.to_dict().items() if name != "own"}
    assert Final.from_dict(earlier) == final  # of a study from before there were such races


@pytest.mark.parametrize(
    "own",
    [5, "a", [], [1.0], [1.0, 0.9], [1.0, 0.9, "a"], [1.0, 0.9, math.nan], [1.0, 0.9, math.inf],
     [1.0, 1.1, 0.9], [0.0, 0.0, 0.0]],
    ids=str,
)  # fmt: skip
def test_own_clocks_that_are_no_ratio_are_no_final(own):
    data = run_final(OURS[:1], race_of(ONE_CLOCK), 0.02).to_dict()
    with pytest.raises(ArgumentError, match="own must be a ratio and its interval, got"):
        Final.from_dict({**data, "own": own})


def test_torch_is_not_chosen_at_the_margin_by_chance_often():
    wrong = 0
    for offset in range(200):
        race = race_of({OURS[0]: 100.0, TORCH: 102.0}, noise=0.005)

        def shifted(configs, seed, turn, race=race, offset=offset):
            return race(configs, seed + 10 * offset, turn)

        wrong += run_final(OURS[:1], shifted, margin=0.02).winner != TORCH
    assert wrong <= 12  # 2.5 % of 200 expected


def failing(race, fails):
    """The race, but where it has configurations that fail(configs, seed) says."""
    asked = []

    def attempt(configs, seed, turn=SHORT):
        asked.append((tuple(configs), seed))
        if fails(configs, seed):
            raise LaunchError("no answer within 30 s", "Hung")
        return race(configs, seed, turn)

    attempt.asked = asked
    return attempt


@pytest.mark.parametrize("bad_at", [1, 2])
def test_a_finalist_that_fails_a_race_costs_no_other(bad_at, caplog):
    """The fastest in the screening, say: wrong on other inputs, or a hang once in a while."""
    times = {OURS[0]: 80.0, OURS[1]: 90.0, OURS[2]: 95.0, TORCH: 100.0}
    race = failing(race_of(times), lambda configs, seed: OURS[0] in configs and seed == bad_at)
    final = run_final(OURS[:3], race, margin=0.02)
    assert final.winner == final.fastest == OURS[1]
    assert final.ratio == pytest.approx(100 / 90, rel=0.005)
    assert [item.config for item in final.contenders] == [*OURS[1:3], TORCH]
    assert str(OURS[0]) in caplog.text
    assert "Hung: no answer" in caplog.text


@pytest.mark.parametrize(
    ("bad", "count", "fastest", "wins"),
    [(0, 3, 1, True), (1, 3, 2, True), (1, 2, 0, False)],
    ids=["fastest", "next", "last"],
)
def test_a_finalist_that_fails_alone_costs_no_other(bad, count, fastest, wins):
    """OURS[0] is slower than torch there, unless it fails itself."""
    raced = drawing(ONE_CLOCK, ONE_CLOCK | {OURS[0]: 105.0})

    def race(configs, seed, turn):
        if turn == LONG and OURS[bad] in configs:
            raise LaunchError("no answer within 30 s", "Hung")
        return raced(configs, seed, turn)

    final = run_final(OURS[:count], race, margin=0.02)
    assert (final.fastest, final.winner) == (OURS[fastest], OURS[fastest] if wins else TORCH)
    left = [config for place, config in enumerate(OURS[:count]) if place != bad]
    assert [item.config for item in final.contenders] == [*left, TORCH]
    with pytest.raises(LaunchError, match="no answer"):
        run_final([OURS[bad]], race, margin=0.02)  # nobody is left


@pytest.mark.parametrize("bad_at", [1, 2])
def test_a_failure_that_does_not_come_again_costs_no_final(bad_at):
    """A hang once in a while: no finalist shows it alone."""
    left = [1]

    def fails(configs, seed):
        return seed == bad_at and bool(left) and bool(left.pop())

    race = failing(race_of({OURS[0]: 80.0, OURS[1]: 90.0, TORCH: 100.0}), fails)
    assert run_final(OURS[:2], race, margin=0.02).winner == OURS[bad_at - 1]


@pytest.mark.parametrize(
    "fails",
    [
        lambda configs, seed: True,
        lambda configs, seed: TORCH in configs,
        lambda configs, seed: len(configs) > 2,  # of too little memory for all, say
        lambda configs, seed: seed == 2,
    ],
    ids=["all", "torch", "together", "confirming"],
)
def test_a_final_in_which_nobody_is_left_fails(fails):
    race = failing(race_of({**dict.fromkeys(OURS, 90.0), TORCH: 100.0}), fails)
    with pytest.raises(LaunchError, match="no answer"):
        run_final(OURS[:3], race, margin=0.02)
    assert len(race.asked) < 10


def test_finalists_are_the_fastest_and_the_default():
    measured = [measurement(config, 100 + place) for place, config in enumerate(OURS)]
    measured.append(measurement(TORCH, 1.0))
    assert finalists(measured, 2, OURS[4]) == [OURS[0], OURS[1], OURS[4]]
    assert finalists(measured, 2, OURS[1]) == [OURS[0], OURS[1]]
    assert finalists(measured[:3], 8, OURS[4]) == OURS[:3]  # the default could not be used


@pytest.mark.parametrize("way", [None, {"stream_k": True}, {"swap_ab": True}])
def test_tiles_that_are_near_take_part(way):
    wide = [replace(OURS[0], group_size=size) for size in (1, 2, 3, 4)]
    high, slow = (replace(OURS[0], block_m=rows) for rows in (64, 32))
    if way is not None:
        high = replace(OURS[0], **way)
    times = [*zip(wide, (100, 101, 102, 103), strict=True), (high, 107), (slow, 109)]
    measured = [measurement(config, us) for config, us in times]
    assert finalists(measured, 3, TORCH) == [wide[0], wide[1], high]
    assert finalists(measured, 5, TORCH) == [wide[0], wide[1], high, wide[2], wide[3]]


def test_a_final_survives_json():
    final = run_final(OURS[:2], race_of({OURS[0]: 90.0, OURS[1]: 91.0, TORCH: 100.0}), 0.02)
    assert Final.from_dict(json.loads(json.dumps(final.to_dict()))) == final
    with pytest.raises(ArgumentError, match="final must have the fields"):
        Final.from_dict({"winner": "torch"})
