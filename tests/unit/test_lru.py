"""The cache model: published rates, hardware counters, and closed form = replay bit for bit."""

import json
import random
from dataclasses import astuple
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoswizzle.errors import ArgumentError
from autoswizzle.hardware import MIB
from autoswizzle.simulator import work
from autoswizzle.simulator.lru import Traffic, replay, traffic, traffic_of
from autoswizzle.simulator.random_work import random_capacity, random_launch, random_waves
from autoswizzle.simulator.work import Item, Launch, Operands

DATA = Path(__file__).parents[1] / "data"
POINTER = json.loads((DATA / "h200_l2_counters.json").read_text())
GLUON = json.loads((DATA / "h200_gluon_l2_counters.json").read_text())


def square(swizzle, group_size, concurrency):
    """8192^3 fp16 in tiles 128x128x32, the article's problem."""
    return Launch(8192, 8192, 8192, 128, 128, 32, 2, swizzle, group_size, concurrency)


@pytest.mark.parametrize(
    ("swizzle", "group_size", "percent"),
    [
        ("row", 8, 79.43), ("column", 8, 79.43), ("grouped", 1, 79.43), ("grouped", 2, 79.52),
        ("grouped", 4, 85.57), ("grouped", 8, 92.13), ("grouped", 16, 95.27),
        ("grouped", 32, 88.06), ("grouped", 64, 79.43), ("morton", 8, 89.39), ("xor", 8, 79.43),
    ],
)  # fmt: skip
def test_published_hit_rates_of_the_rtx_5080(swizzle, group_size, percent):
    predicted = traffic(square(swizzle, group_size, 168), 64 * MIB)
    assert round(100 * predicted.hit_rate, 2) == percent


def test_replay_gives_a_published_rate_too():
    launch = square("grouped", 8, 168)
    replayed = replay(launch.waves(), launch.operands(), 64 * MIB)
    assert round(100 * replayed.hit_rate, 2) == 92.13
    assert replayed == traffic(launch, 64 * MIB)


@pytest.mark.parametrize(("swizzle", "loads"), [("row", 90), ("grouped", 54)])
def test_nine_programs_on_nine_by_nine_tiles(swizzle, loads):
    launch = Launch(9, 9, 9, 1, 1, 1, 1, swizzle, 3, 9)
    first_wave = [next(launch.waves())]
    assert traffic_of(first_wave, launch.operands(), 1000).misses == loads
    assert replay(first_wave, launch.operands(), 1000).misses == loads


def counter_launch(row):
    order, _, group = row["order"].partition(" g=")
    return square(
        {"col": "column"}.get(order, order), int(group or 8), POINTER["resident_programs"]
    )


@pytest.mark.parametrize("row", POINTER["rows"], ids=lambda row: f"{row['launch']}, {row['order']}")
def test_pointer_kernel_counters(row):
    predicted = traffic(counter_launch(row), POINTER["l2_bytes"])
    assert round(100 * predicted.hit_rate, 2) == row["replayed_lru_hit_pct"]
    assert 0.97 <= predicted.miss_bytes / row["measured_dram_read_bytes"] <= 1.03


def gluon_launch(row):
    return Launch(
        row["M"], row["N"], row["K"], 128, 256, 64, 2, "grouped", row["group_size"],
        GLUON["resident_programs"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "row", GLUON["rows"], ids=lambda row: f"{row['M']}x{row['N']}x{row['K']} {row['group_size']}"
)
def test_gluon_kernel_predictions_row_by_row(row):
    launch = gluon_launch(row)
    assert traffic(launch, 60 * MIB).miss_bytes == row["predicted_bytes_l2_60mib"]
    assert traffic(launch, 30 * MIB).miss_bytes == row["predicted_bytes_l2_30mib"]


def test_gluon_kernel_counters_with_30_mib():
    ratios = [
        traffic(gluon_launch(row), 30 * MIB).miss_bytes / row["measured_dram_read_bytes"]
        for row in GLUON["rows"]
    ]
    assert sum(abs(ratio - 1) <= 0.03 for ratio in ratios) == 18
    assert sum(abs(ratio - 1) <= 0.16 for ratio in ratios) == 26


@given(st.randoms(use_true_random=False))
def test_closed_form_equals_the_replay_of_a_launch(draw):
    launch = random_launch(draw)
    operands = launch.operands()
    capacity = random_capacity(draw, operands)
    assert traffic(launch, capacity) == replay(launch.waves(), operands, capacity)


@given(st.randoms(use_true_random=False))
def test_closed_form_equals_the_replay_of_any_work(draw):
    waves, operands = random_waves(draw)
    capacity = random_capacity(draw, operands)
    assert traffic_of(waves, operands, capacity) == replay(waves, operands, capacity)


def test_closed_form_equals_the_replay_on_1000_random_traces():
    draw = random.Random(4)
    for _ in range(500):
        launch = random_launch(draw)
        capacity = random_capacity(draw, launch.operands())
        expected = replay(launch.waves(), launch.operands(), capacity)
        assert traffic(launch, capacity) == expected
        assert traffic_of(launch.waves(), launch.operands(), capacity) == expected
        waves, operands = random_waves(draw)
        capacity = random_capacity(draw, operands)
        assert traffic_of(waves, operands, capacity) == replay(waves, operands, capacity)


def test_of_a_large_launch_the_first_tiles_count_for_all(monkeypatch):
    draw = random.Random(5)
    cut = 0
    for _ in range(300):
        launch = random_launch(draw)
        capacity = random_capacity(draw, launch.operands())
        monkeypatch.setattr(work, "_FOLLOWED_ITEMS", draw.randint(1, 60))
        programs = [program for wave in launch.waves() for program in wave]
        tiles = len(programs) // launch.split_k
        followed = min(tiles, max(1, work._FOLLOWED_ITEMS // launch.split_k))
        first = iter(programs[: followed * launch.split_k])
        waves = iter(lambda: list(islice(first, launch.concurrency)), [])  # noqa: B023
        part = replay(waves, launch.operands(), capacity)
        numbers = (value * tiles // followed for value in astuple(part))
        assert traffic(launch, capacity) == Traffic(*numbers), launch
        cut += followed < tiles
    assert cut > 150


@pytest.mark.parametrize("swizzle", ["row", "morton", "hilbert", "serpentine"])
@pytest.mark.parametrize("capacity", [2**15, 2**18, 2**22])
def test_each_part_reads_the_cache_once_too_often_at_most(monkeypatch, swizzle, capacity):
    """On 128 x 128 tiles, in four parts that are alike."""
    launch = Launch(4096, 4096, 128, 32, 32, 32, 2, swizzle, 8, 64)
    whole = traffic(launch, capacity)
    monkeypatch.setattr(work, "_FOLLOWED_ITEMS", 4096)
    part = traffic(launch, capacity)
    assert 0 <= part.miss_bytes - whole.miss_bytes <= 3 * capacity
    assert sum(astuple(part)[:2]) == sum(astuple(whole)[:2])


def test_many_waves_count_like_few():
    """Beyond the dense wave table: 1,600 waves of one tile."""
    launch = Launch(40, 40, 6, 1, 1, 2, 1, "hilbert", 8, 1)
    for capacity in (1, 6, 60, 200):
        expected = replay(launch.waves(), launch.operands(), capacity)
        assert traffic(launch, capacity) == expected


def test_replay_by_hand():
    """Two tiles of one row in one wave: A is shared; then the same row again."""
    operands = Operands((2,), (3, 5), k=4, block_k=2, itemsize=1)
    wave = [[Item(0, 0, 0, 2)], [Item(0, 1, 0, 2)]]
    assert replay([wave], operands, 1000) == Traffic(2, 6, 2 * 4, 2 * (4 + 6 + 10))
    again = [[Item(0, 1, 0, 2)]]
    # Its first touch, A(0, 0), lies 34 bytes deep. Gone, it pushes out the next one, B(0, 1), too.
    assert replay([wave, again], operands, 34).misses == 6
    assert replay([wave, again], operands, 33).misses == 6 + 2


def test_512_by_512_tiles():
    launch = Launch(512 * 128, 512 * 128, 8192, 128, 128, 32, 2, "grouped", 8, 264)
    predicted = traffic(launch, 30 * MIB)
    assert predicted.hits + predicted.misses == 2 * 512 * 512 * 256


def test_one_tile_misses_once_per_step():
    assert traffic(Launch(5, 7, 9, 8, 8, 4, 2, "row", 8, 10), 1) == Traffic(0, 6, 0, 2 * 9 * 12)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, None, True])
def test_illegal_capacity_is_named(capacity):
    launch = square("row", 8, 168)
    for call in (
        lambda: traffic(launch, capacity),
        lambda: traffic_of(launch.waves(), launch.operands(), capacity),
        lambda: replay(launch.waves(), launch.operands(), capacity),
    ):
        with pytest.raises(ArgumentError, match=f"capacity must be .*, got {capacity}"):
            call()


@pytest.mark.parametrize("name", ["m", "k", "block_n", "concurrency", "split_k", "batch"])
def test_illegal_launch_fields_are_named(name):
    fields = dict.fromkeys(Launch.__slots__, 2) | {"swizzle": "row", name: 0}
    with pytest.raises(ArgumentError, match=f"{name} must be .*, got 0"):
        Launch(**fields)


def test_empty_work_is_named():
    with pytest.raises(ArgumentError, match=r"row_extents must be .*, got"):
        Operands((), (1,), 1, 1, 1)
    with pytest.raises(ArgumentError, match="waves must hold"):
        traffic_of([], Operands((1,), (1,), 1, 1, 1), 8)


def test_parts_of_a_tile_are_neighbours_and_as_even_as_steps_allow():
    """As work_of in kernels/wgmma_split.py hands them out: item = tile * splits + split."""
    launch = Launch(2, 3, 17, 1, 1, 2, 1, "row", 1, 4, split_k=4)
    items = [program[0] for wave in launch.waves() for program in wave]
    steps = 9
    assert items == [
        Item(*divmod(index // 4, 3), steps * (index % 4) // 4, steps * (index % 4 + 1) // 4)
        for index in range(2 * 3 * 4)
    ]
    assert [len(wave) for wave in launch.waves()] == [4] * 6


def test_parts_side_by_side_share_nothing_and_tiles_of_a_row_share_its_parts():
    """One wave of two tiles in two parts: each part of A's row is read by both tiles."""
    launch = Launch(1, 2, 8, 1, 1, 1, 1, "row", 1, 4, split_k=2)
    assert traffic(launch, 1000) == Traffic(8, 24, 8, 24)
    alone = Launch(1, 2, 8, 1, 1, 1, 1, "row", 1, 2, split_k=2)  # a tile a wave
    assert traffic(alone, 1000) == Traffic(8, 24, 8, 24)
    assert traffic(alone, 5).hits == 0
