"""Bank conflicts against Gluon's compile-time count: ways = count + 1."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autoswizzle.smem import PanelLayout, Swizzle, TileLayout, accumulator_lanes, bank_conflicts

pytestmark = pytest.mark.kernel
pytest.importorskip("triton.experimental.gluon")
LANE = np.arange(32)


def gluon_counts(cases):
    program = Path(__file__).with_name("gluon_conflicts.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    counts = [int(line.split("=")[1]) for line in done.stdout.splitlines() if "=" in line]
    assert len(counts) == len(cases), f"stopped at {cases[len(counts)]}: {done.stderr[-2000:]}"
    return counts


def swizzled(itemsize, cols, vec, per_phase, max_phase):
    bits, base = max_phase.bit_length() - 1, (vec * itemsize).bit_length() - 1
    return Swizzle(bits, base, (cols * per_phase // vec).bit_length() - 1)


def our_ways(case):
    """Ways of the widest loads the registers and the layout allow, which is what Gluon emits."""
    itemsize, cols, rows = case["itemsize"], case["cols"], case["rows"]
    if case["shared"] == "panel":
        layout, run = PanelLayout(rows, case["width"], itemsize), 16 // itemsize
    else:
        args = (case["vec"], case["per_phase"], case["max_phase"])
        layout = TileLayout(cols, itemsize, swizzled(itemsize, cols, *args))
        run = case["vec"] if case["max_phase"] > 1 else cols
    vector = case["vector"]
    match case["registers"]:
        case "blocked":
            across = case["lanes"][1]
            cells = LANE // across % rows, LANE % across * vector % cols
        case "accumulator":
            cells = accumulator_lanes()
        case "a":
            cells = LANE // 4, LANE % 4 * vector
        case "b":  # a lane's consecutive elements lie in one column
            cells, vector = (LANE % 4 * vector, LANE // 4), 1
    size = itemsize * min(vector, run, 16 // itemsize)
    return bank_conflicts(layout, f"ld.shared.b{8 * size}", cells).ways


def blocked_cases():
    for itemsize, row_bytes, per_phase, across in itertools.product(
        (1, 2, 4), (64, 256), (1, 4), (2, 8)
    ):
        cols = row_bytes // itemsize
        for vector, vec, max_phase in itertools.product((1, 2, 4, 8), (1, 4, 8, 16), (1, 2, 4, 8)):
            if vec * max_phase <= cols and across * vector <= cols:
                yield {
                    "itemsize": itemsize, "rows": 64, "cols": cols, "warps": 4,
                    "registers": "blocked", "vector": vector, "lanes": [32 // across, across],
                    "shared": "swizzled", "vec": vec, "per_phase": per_phase,
                    "max_phase": max_phase,
                }  # fmt: skip


def mma_cases():
    for itemsize, registers, row_bytes, per_phase, max_phase in itertools.product(
        (2, 4), ("a", "b", "accumulator"), (64, 128, 256), (1, 2), (1, 2, 4, 8)
    ):
        cols, vec = row_bytes // itemsize, 16 // itemsize
        if vec * max_phase <= cols:
            yield {
                "itemsize": itemsize, "rows": 64, "cols": cols, "warps": 8,
                "registers": registers,
                "vector": 2 if registers == "accumulator" else 4 // itemsize,
                "shared": "swizzled", "vec": vec, "per_phase": per_phase, "max_phase": max_phase,
            }  # fmt: skip


def panel_cases():
    for width, registers in itertools.product((32, 64, 128), ("a", "blocked")):
        yield {
            "itemsize": 2, "rows": 128, "cols": 64, "warps": 8, "registers": registers,
            "vector": 2 if registers == "a" else 8, "lanes": [4, 8],
            "shared": "panel", "width": width,
        }  # fmt: skip


def within_words(case):
    """Whether the swizzle moves pieces smaller than a bank's 4-byte word."""
    return (
        case["shared"] == "swizzled"
        and case["max_phase"] > 1
        and (case["vec"] * case["itemsize"] < 4)
    )


@pytest.mark.parametrize("family", [blocked_cases, mma_cases, panel_cases])
def test_ways_are_gluons_count_plus_one(family):
    cases = [case for case in family() if not within_words(case)]
    wrong = [
        (case, count, ours)
        for case, count in zip(cases, gluon_counts(cases), strict=True)
        if (ours := our_ways(case)) != count + 1
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}, first: {wrong[0]}"


def test_the_table_of_a_and_b_reads():
    """A tile 128 x 64 bf16: counts 7, 3, 1, 0 for none, 32, 64, 128 bytes."""
    tile = {"itemsize": 2, "rows": 128, "cols": 64, "warps": 8, "registers": "a", "vector": 2}
    cases = [
        {**tile, "shared": "swizzled", "vec": 8, "per_phase": 1, "max_phase": phases}
        for phases in (1, 2, 4, 8)
    ]
    assert gluon_counts(cases) == [7, 3, 1, 0]
    assert [our_ways(case) for case in cases] == [8, 4, 2, 1]


def test_gluon_undercounts_swizzles_within_a_word():
    """It takes the two halves of a word, in different rows, for two banks."""
    case = {
        "itemsize": 2, "rows": 64, "cols": 64, "warps": 4,
        "registers": "blocked", "vector": 1, "lanes": [32, 1],
        "shared": "swizzled", "vec": 1, "per_phase": 1, "max_phase": 2,
    }  # fmt: skip
    assert within_words(case)
    assert gluon_counts([case]) == [15]
    assert our_ways(case) == 32  # a column: every row's element is in bank 0, in a word of its own
