"""The L2 as it is, against DRAM counters and its own limits."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoswizzle.hardware import MIB, find_gpu
from autoswizzle.simulator import l2
from autoswizzle.simulator.l2 import measured_traffic
from autoswizzle.simulator.lru import replay, traffic
from autoswizzle.simulator.random_work import random_capacity, random_launch
from autoswizzle.simulator.work import Launch

DATA = Path(__file__).parents[1] / "data"
POINTER = json.loads((DATA / "h200_l2_counters.json").read_text())["rows"]
GLUON = json.loads((DATA / "h200_gluon_l2_counters.json").read_text())["rows"]
H200 = find_gpu("H200")


def pointer_launch(row, concurrency=264):
    order, _, group = row["order"].partition(" g=")
    swizzle = {"col": "column"}.get(order, order)
    return Launch(8192, 8192, 8192, 128, 128, 32, 2, swizzle, int(group or 8), concurrency)


def gluon_launch(row):
    return Launch(row["M"], row["N"], row["K"], 128, 256, 64, 2, "grouped", row["group_size"], 132)


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
    reads = [measured_traffic(launch, H200, size).miss_bytes for size in (0, 2, 4)]
    assert reads == sorted(reads)
    assert reads[0] < reads[2]
    smaller = replace(H200, l2_effective_bytes=20 * MIB)
    assert measured_traffic(launch, smaller, 2).miss_bytes > reads[1]


@pytest.mark.parametrize("row", [GLUON[0], GLUON[24]], ids=["long", "short"])
def test_reads_are_at_least_the_operands_and_at_most_every_touch(row):
    launch = gluon_launch(row)
    found = measured_traffic(launch, H200, 2)
    operands = (launch.m + launch.n) * launch.k * 2
    assert operands <= found.miss_bytes < found.miss_bytes + found.hit_bytes
