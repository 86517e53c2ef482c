"""The benchmarks that count, time and fit, without the GPU they are for."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoswizzle.config import GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurement
from autoswizzle.simulator.cost import FITTED
from autoswizzle.simulator.resources import Resources, estimate, resident_blocks
from autoswizzle.smem_bench import parse_counters
from autoswizzle.space import why_illegal

ROOT = Path(__file__).parents[2]
H200 = find_gpu("H200")
SMALL = GemmProblem.parse("512x512x512:bf16:nt")


CSV = """==PROF== Connected to process 7
==PROF== Profiling "specialized": 0%....100% - 1 pass
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","specialized","dram__bytes_read.sum","byte","1,234,567"
"0","7","specialized","dram__bytes_write.sum","byte","8"
"0","7","specialized","lts__t_sector_hit_rate.pct","%","71.25"
"1","7","pointer_gemm","dram__bytes_read.sum","byte","99"
"""


def test_counters_are_read_in_order_of_launch(load):
    first, second = parse_counters(CSV, load("counters").METRICS)
    assert first == {
        "measured_dram_read_bytes": 1234567,
        "measured_dram_write_bytes": 8,
        "measured_l2_sector_hit_pct": 71.25,
    }
    assert second == {"measured_dram_read_bytes": 99}


def test_the_counted_points_are_about_150_legal_ones(load):
    points = load("counters").default_points()
    assert len(set(points)) == len(points) == 144
    assert not [config for problem, config in points if why_illegal(config, problem, H200)]
    assert len({config.swizzle for _, config in points}) >= 6


def test_counters_of_too_few_launches_are_an_error(load, tmp_path):
    counters = load("counters")
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\ncat <<'END'\n{CSV}END\n")
    ncu.chmod(0o755)
    points = counters.default_points()
    assert len(counters.count(points[:2], str(ncu))) == 2
    with pytest.raises(SystemExit, match="must count 3 launches, got 2"):
        counters.count(points[:3], str(ncu))


def test_the_counter_file_is_read_by_the_predictor(load, tmp_path):
    counters, predictor = load("counters"), load("predictor")
    points = counters.default_points()[:1] + counters.default_points()[-1:]
    taken = [(point, estimate(point[1], point[0], H200)) for point in points]
    counted = [{"measured_dram_read_bytes": 5.0}, {"measured_dram_read_bytes": 7.0}]
    path = tmp_path / "l2_counters.json"
    path.write_text(json.dumps({"rows": list(counters.rows_of(taken, counted, H200))}))
    found = predictor.points(path)
    assert [point.read_bytes for point in found] == [5, 7]
    assert [point.launch.concurrency for point in found] == [
        132 * resident_blocks(resources, H200) for _, resources in taken
    ]


def test_samples_are_even_legal_feasible_and_repeatable(load):
    tables = load("time_tables")
    wide = GemmProblem(64, 8192, 4096)
    chosen = tables.drawn([SMALL, wide], H200, 60, "0/2")
    assert len(set(chosen)) == 60
    assert chosen == tables.drawn([SMALL, wide], H200, 60, "0/2")
    assert chosen != tables.drawn([SMALL, wide], H200, 60, "1/2")
    for config in chosen:
        assert tables.fits(config, SMALL, H200) or tables.fits(config, wide, H200)
    for config in tables.drawn([SMALL], H200, 60, "0/1"):
        assert why_illegal(config, SMALL, H200) is None
        assert resident_blocks(estimate(config, SMALL, H200), H200)
    assert len({config.kernel for config in chosen}) >= 3


def test_kernels_are_shared_by_problems_where_the_compiler_sees_no_difference(load):
    tables = load("time_tables")
    first, other = GemmProblem(4096, 4096, 4096), GemmProblem(512, 1024, 256)
    odd = GemmProblem(509, 1021, 257)
    plain, square = GemmConfig(), GemmConfig(swizzle="hilbert")
    assert tables.compiled_as(plain, other, first) == first
    assert tables.compiled_as(square, other, first) == other  # its side is a constant of the kernel
    assert tables.compiled_as(plain, odd, first) == odd


class FakeLaboratory:
    """Every third configuration fails, every fifth does not fit."""

    gpu = H200

    def __init__(self, after=None):
        self.asked, self.after = [], after

    def compilers(self, task):
        self.asked.append(task[0])
        place = len(self.asked)
        if self.after and place > self.after:
            raise KeyboardInterrupt
        if place % 3 == 0:
            raise LaunchError("no luck")
        return Resources(300 if place % 5 == 0 else 64, 0, 4)

    def bench(self, task):
        us = 100.0 + task.config.block_m
        return Measurement(task.config, us, us - 1, us + 1, "sustained")


def test_a_table_goes_on_where_it_was_left(load, tmp_path):
    tables = load("time_tables")
    configs = tables.drawn([SMALL], H200, 60, "0/1")
    tasks = [(config, SMALL) for config in configs]
    table = tables.Table(SMALL, H200, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tables.fill(table, tasks, FakeLaboratory(after=52), 1, time.monotonic() + 60)
    again = tables.Table(SMALL, H200, tmp_path)
    assert len(again.known()) == 50
    laboratory = FakeLaboratory()
    tables.fill(again, tasks, laboratory, 1, time.monotonic() + 60)
    assert laboratory.asked == configs[50:]
    done = tables.Table(SMALL, H200, tmp_path)
    assert done.known() == set(configs)
    assert {row["kind"] for row in done.infeasible} == {"LaunchError", "Infeasible"}
    data = json.loads(done.path.read_text())
    assert [Measurement.from_dict(row).time_us for row in data["measurements"]]


def test_no_measurement_starts_after_the_time_is_up(load, tmp_path):
    tables = load("time_tables")
    laboratory = FakeLaboratory()
    tasks = [(config, SMALL) for config in tables.drawn([SMALL], H200, 5, "0/1")]
    tables.fill(tables.Table(SMALL, H200, tmp_path), tasks, laboratory, 1, time.monotonic() - 1)
    assert laboratory.asked == []


TRUTH = replace(
    FITTED, cooperative=0.8, none=0.7, load_latency_us=2.0, partial_bytes_per_sm_us=7_000
)


@pytest.fixture
def made_up(load):
    """Tables whose times the model makes with other coefficients, each problem at its own level."""
    fit_time_model, time_tables = load("fit_time_model"), load("time_tables")
    found = []
    for place, text in enumerate(("2048x4096x1024", "512x2048x8192", "4096x4096x512")):
        problem = GemmProblem.parse(f"{text}:bf16:nt")
        configs = time_tables.drawn([problem], H200, 120, "0/1", kernels=("wgmma",))
        blank = [{"config": config.to_dict(), "time_us": 1.0} for config in configs]
        table = fit_time_model._table(str(problem), H200, blank, "lru")
        times = table.predicted(TRUTH) * (1 + 0.1 * place)
        rows = (replace(row, time_us=us) for row, us in zip(table.rows, times, strict=True))
        found.append(replace(table, rows=tuple(rows)))
    return SimpleNamespace(module=fit_time_model, tables=found)


def test_a_fit_finds_how_coefficients_compare(made_up):
    fitted = made_up.module.fit(made_up.tables)
    assert fitted.none / fitted.cooperative == pytest.approx(0.7 / 0.8, rel=0.03)
    latency = fitted.load_latency_us * fitted.cooperative
    assert latency == pytest.approx(2.0 * 0.8, rel=0.1)
    before, after = (
        [made_up.module.judged(table, c)["spearman"] for table in made_up.tables]
        for c in (FITTED, fitted)
    )
    assert min(after) > 0.99
    assert sum(before) < sum(after)


def test_a_table_is_judged_by_fits_of_other_problems(made_up, monkeypatch):
    seen = []

    def fit(tables):
        seen.append({str(table.problem) for table in tables})
        return replace(FITTED, step_us=float(len(seen)))

    monkeypatch.setattr(made_up.module, "fit", fit)
    for row, fitted in made_up.module.judged_by_others(made_up.tables, 2):
        assert row["problem"] not in seen[int(fitted.step_us) - 1]


def test_fitting_problems_are_fitted_on_and_not_judged(made_up, monkeypatch):
    first = made_up.tables[0].problem
    monkeypatch.setattr(made_up.module, "FITTING", ((first.m, first.n, first.k),))
    judged = made_up.module.judged_by_others(made_up.tables, 4)
    assert [row["problem"] for row, _ in judged] == [str(t.problem) for t in made_up.tables[1:]]


def test_the_gap_is_that_of_the_best_of_the_predicted_top(made_up):
    table = made_up.tables[0]
    order = table.predicted(FITTED).argsort(kind="stable")
    times = [0.0] * len(order)
    for place, row in enumerate(order):
        times[row] = 110.0 if place < made_up.module.TOP else 100.0
    rows = (replace(row, time_us=us) for row, us in zip(table.rows, times, strict=True))
    found = made_up.module.judged(replace(table, rows=tuple(rows)), FITTED)
    assert found["gap_of_top"] == pytest.approx(0.1)


def test_a_stranger_knows_only_what_was_measured_of_it(load, tmp_path):
    from autoswizzle.calibration import Calibration, Reading

    readings = {
        "dram_gbs": 4000.0, "l2_gbs": 9000.0, "l2_effective_bytes": 29e6, "tflops": 700.0,
        "launch_us": 2.0,
    }  # fmt: skip
    found = Calibration(
        "NVIDIA H200", 132, H200.l2_bytes, "2026-11-30",
        **{name: Reading(value, value, value) for name, value in readings.items()},
    )  # fmt: skip
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"capability": 90, "runs": [found.to_dict()]}))
    gpu = load("calibration").stranger(path)
    assert gpu.source.startswith("reported; rates of H100")
    assert (gpu.l2_effective_bytes, gpu.l2_bytes) == (29_000_000, H200.l2_bytes)
    assert gpu.sustained.dram_gbs == 4000
    assert load("calibration").deviation([found.to_dict()] * 2, "tflops") == 0


def test_the_sanitizer_has_launches_of_every_family(load, monkeypatch):
    monkeypatch.setattr("autoswizzle.space.families.triton_version", lambda: (3, 9))
    module = load("sanitize")
    for family in module.FAMILIES:
        found = list(module.launches(H200, family))
        assert len(found) >= 20, family
        assert {config.kernel for config, _ in found} == {family}
        assert {problem.k % config.block_k == 0 for config, problem in found} == {False, True}
        assert all(why_illegal(config, problem, H200) is None for config, problem in found)
