"""The L2 as it is, against DRAM counters and its own limits."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.hardware import MIB, find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator import l2
from autoswizzle.simulator.l2 import measured_traffic
from autoswizzle.simulator.lru import replay, traffic
from autoswizzle.simulator.random_work import random_capacity, random_launch
from autoswizzle.simulator.work import Launch

DATA = Path(__file__).parents[1] / "data"
POINTER = json.loads((DATA / "h200_l2_counters.json").read_text())["rows"]
GLUON = json.loads((DATA / "h200_gluon_l2_counters.json").read_text())["rows"]
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
H200 = find_gpu("H200")
ONE_WAVE = Launch(512, 8448, 8192, 128, 256, 64, 2, "row", 8, 132, stages=4)  # 4 x 33 tiles
MANY_WAVES = replace(ONE_WAVE, m=16896)


def pointer_launch(row, concurrency=264):
    order, _, group = row["order"].partition(" g=")
    swizzle = {"col": "column"}.get(order, order)
    return Launch(
        8192, 8192, 8192, 128, 128, 32, 2, swizzle, int(group or 8), concurrency, stages=3,
        persistent=row["launch"] != "one program per tile",
    )  # fmt: skip


def gluon_launch(row):
    extents = row["M"], row["N"], row["K"]
    return Launch(*extents, 128, 256, 64, 2, "grouped", row["group_size"], 132, stages=3)


def our_launch(row):
    problem, config = GemmProblem.parse(row["problem"]), GemmConfig.from_dict(row["config"])
    return Launch(
        problem.m, problem.n, problem.k, config.block_m, config.block_n, config.block_k, 2,
        config.swizzle, config.group_size, row["resident"], stages=config.num_stages,
        persistent=config.persistent,
    )  # fmt: skip


def reads(launch, gpu=H200):
    return measured_traffic(launch, gpu, 2).miss_bytes


def errors(rows, predict):
    return np.array([abs(predict(row) / row["measured_dram_read_bytes"] - 1) for row in rows])


def test_pointer_kernel_counters():
    found = errors(POINTER, lambda row: measured_traffic(pointer_launch(row), H200, 2).miss_bytes)
    assert found.max() <= 0.03


def test_gluon_kernel_counters():
    found = errors(GLUON, lambda row: measured_traffic(gluon_launch(row), H200, 2).miss_bytes)
    assert np.median(found) <= 0.015
    assert np.quantile(found, 0.9) <= 0.12
    lru = errors(GLUON, lambda row: traffic(gluon_launch(row), 30 * MIB).miss_bytes)
    assert np.quantile(lru, 0.9) > 0.25


def test_every_resident_block_of_an_sm_counts():
    one_block = errors(
        POINTER, lambda row: measured_traffic(pointer_launch(row, 132), H200, 2).miss_bytes
    )
    assert np.median(one_block) > 0.4


def test_a_hard_edge_without_stores_is_the_lru_model(monkeypatch):
    """Up to the mean over a range of distances: at most one step a touch."""
    monkeypatch.setattr(l2, "SOFT_EDGE", (1 - 1e-12, 1 + 1e-12))
    draw = random.Random(3)
    for _ in range(100):
        launch = random_launch(draw)
        capacity = random_capacity(draw, launch.operands())
        gpu = replace(H200, l2_bytes=capacity, l2_effective_bytes=capacity)
        found = measured_traffic(launch, gpu, out_itemsize=0)
        expected = replay(launch.waves(), launch.operands(), capacity)
        assert found.hits + found.misses == expected.hits + expected.misses
        assert found.hit_bytes + found.miss_bytes == expected.hit_bytes + expected.miss_bytes
        carried = len(launch.reuse().carried) * len(launch.kinds().segments()[0])
        assert abs(found.hits - expected.hits) <= carried


def test_stores_of_c_and_a_smaller_cache_cost_hits():
    launch = gluon_launch(GLUON[4])
    found = [measured_traffic(launch, H200, size).miss_bytes for size in (0, 2, 4)]
    assert found == sorted(found)
    assert found[0] < found[2]
    assert reads(launch, replace(H200, l2_effective_bytes=20 * MIB)) > found[1]


@pytest.mark.parametrize("row", [GLUON[0], GLUON[24]], ids=["long", "short"])
def test_reads_are_at_least_the_operands_and_at_most_every_touch(row):
    launch = gluon_launch(row)
    found = measured_traffic(launch, H200, 2)
    operands = (launch.m + launch.n) * launch.k * 2
    assert operands <= found.miss_bytes < found.miss_bytes + found.hit_bytes


def test_reported_counters_of_all_kernels():
    """The bounds of docs/predictor.md, over 196 launches on shapes that nothing was fitted to."""
    ours = json.loads((RESULTS / "l2_counters.json").read_text())["rows"]
    rows = [(row, pointer_launch(row)) for row in POINTER]
    rows += [(row, gluon_launch(row)) for row in GLUON] + [(row, our_launch(row)) for row in ours]

    def found(change):
        predicted = [reads(replace(launch, **change)) for _, launch in rows]
        counted = [row["measured_dram_read_bytes"] for row, _ in rows]
        return np.abs(np.array(predicted) / counted - 1)

    assert len(rows) == 196
    assert np.median(found({})) <= 0.03
    assert np.quantile(found({}), 0.9) <= 0.12
    assert np.quantile(found({"stages": 1}), 0.9) > 0.25


@pytest.mark.parametrize("persistent", [True, False])
def test_few_bytes_in_flight_keep_programs_together(persistent):
    launch = replace(MANY_WAVES, persistent=persistent)
    assert reads(replace(launch, stages=3)) == reads(replace(launch, stages=1)) < reads(launch)
    two_blocks = replace(launch, concurrency=264)
    assert reads(replace(two_blocks, stages=2)) > reads(replace(two_blocks, stages=1))


def test_more_drift_reads_more_in_one_wave(monkeypatch):
    found = []
    for drift in (0, 0.01, 0.1, 0.5, 2):
        monkeypatch.setattr(l2, "DRIFT", drift)
        found.append(reads(ONE_WAVE))
    assert found[0] == reads(replace(ONE_WAVE, stages=1))
    assert all(less < more for less, more in pairwise(found))


def test_programs_of_the_only_wave_start_together():
    launch = replace(ONE_WAVE, persistent=False)
    assert reads(launch) == reads(replace(launch, stages=1))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_launch_that_fits_the_cache_is_unchanged(persistent):
    launch = Launch(1024, 1024, 1024, 64, 64, 64, 2, "row", 8, 132, stages=8, persistent=persistent)
    assert reads(launch) == reads(replace(launch, stages=1)) == 2 * 1024 * 1024 * 2


def test_a_wave_that_fits_the_cache_is_unchanged_however_programs_drift(monkeypatch):
    monkeypatch.setattr(l2, "DRIFT", 2)
    launch = replace(ONE_WAVE, m=1024, n=4096, k=3008, concurrency=128)  # 8 x 16 tiles, 29.4 MiB
    assert reads(launch) == reads(replace(launch, stages=1)) == (launch.m + launch.n) * 3008 * 2


def test_programs_that_all_wait_for_dram_do_not_drift():
    slow = replace(H200, dram_gbs=100)
    assert reads(MANY_WAVES, slow) == reads(replace(MANY_WAVES, stages=1), slow)


def test_drift_costs_the_same_share_whatever_k():
    """Time is in work items, so K cancels out but for what is kept from wave to wave."""
    twice = replace(H200, l2_effective_bytes=60 * MIB, l2_bytes=120 * MIB)
    share, share_of_twice = (
        reads(launch, gpu) / reads(replace(launch, stages=1), gpu)
        for launch, gpu in ((MANY_WAVES, H200), (replace(MANY_WAVES, k=16384), twice))
    )
    assert share > 1.1
    assert share_of_twice == pytest.approx(share, rel=0.01)


def test_drifting_launches_touch_what_lockstep_touches():
    """Between reading each operand once and every touch; hits and misses add up."""
    draw = random.Random(5)
    for _ in range(200):
        launch = replace(
            random_launch(draw), stages=draw.choice((1, 50, 1000)), persistent=draw.random() < 0.5
        )
        capacity = random_capacity(draw, launch.operands())
        gpu = replace(H200, num_sms=7, l2_bytes=capacity, l2_effective_bytes=capacity)
        found, together = (
            measured_traffic(x, gpu, out_itemsize=1) for x in (launch, replace(launch, stages=1))
        )
        touched = together.hit_bytes + together.miss_bytes
        assert found.hit_bytes + found.miss_bytes == touched
        assert found.hits + found.misses == together.hits + together.misses
        operands = (launch.m + launch.n) * launch.k * launch.batch * launch.itemsize
        assert operands <= found.miss_bytes <= touched
