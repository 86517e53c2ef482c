"""The benchmarks that search, on a laboratory that answers from formulas."""

import json
import sys

import pytest

from autoswizzle import tuning
from autoswizzle.cache.store import read_entries
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurement, Race

H200 = find_gpu("H200")
PROBLEMS = [GemmProblem.parse(f"{m}x4096x4096:bf16:nt") for m in (1024, 2048, 4096)]


@pytest.fixture
def run(load, fresh, fake_laboratory, monkeypatch, tmp_path):
    """Runs a benchmark's main with these arguments; returns its module and what it wrote."""
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    monkeypatch.setattr(tuning, "Laboratory", fake_laboratory.FakeLaboratory)
    monkeypatch.setattr(tuning, "versions", lambda: {"torch": "2.11", "triton": "3.6.0"})

    def ran(name, *arguments, **changes):
        module = load(name)
        monkeypatch.setattr(module, "detect", lambda device: H200)
        monkeypatch.setattr(module, "Laboratory", fake_laboratory.FakeLaboratory)
        for attribute, value in changes.items():
            monkeypatch.setattr(module, attribute, value)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        module.main()
        return module

    return ran


def test_the_suite_is_resumed_and_shipped(run, load, fake_laboratory, monkeypatch, tmp_path):
    texts = [str(problem) for problem in PROBLEMS]
    entries, shipped = tmp_path / "entries.json", tmp_path / "shipped.json"
    common = ["--out", tmp_path, "--entries", entries, "--seeds", 8, "--problems"]
    run("gemm_suite", *common, *texts[:2])
    path = tmp_path / "suite-bf16-nt.json"
    before = json.loads(path.read_text())
    assert [row["problem"] for row in before["rows"]] == texts[:2]
    for problem, row in zip(PROBLEMS, before["rows"], strict=False):
        assert GemmConfig.from_dict(row["config"]) == fake_laboratory.winner(problem)
        assert row["ratio"] == row["dispatched"] == pytest.approx(1.1)
        assert row["own"]["ratio"] == pytest.approx(1.1)
        [refused] = row["infeasible"]
        assert GemmConfig.from_dict(refused["config"]) == fake_laboratory.seeds(problem)[0]
        assert refused["why"] == "ptxas gives up"
    assert before["geomean"] == before["own_geomean"] == pytest.approx(1.1)

    monkeypatch.setattr(fake_laboratory.FakeLaboratory, "torch_us", 101.0)
    run("gemm_suite", *common, *texts)
    after = json.loads(path.read_text())
    assert after["rows"][:2] == before["rows"]  # as they were
    assert after["rows"][2]["ratio"] == pytest.approx(1.01)
    assert after["rows"][2]["dispatched"] == 1.0

    monkeypatch.setattr(sys, "argv", ["ship.py", str(path), str(shipped)])
    load("ship").main()
    for file in (entries, shipped):
        configs = {str(entry.key.problem): entry.config for entry in read_entries(file)[0]}
        expected = [fake_laboratory.winner(PROBLEMS[0]), fake_laboratory.winner(PROBLEMS[1]), TORCH]
        assert configs == dict(zip(texts, expected, strict=True))


@pytest.mark.parametrize("gpus", ["0", "0,1"])
def test_wall_time_and_finals_of_a_part_of_the_suite(run, fake_laboratory, tmp_path, gpus):
    out, entries = tmp_path / "wall.json", tmp_path / "entries.json"
    given = ["wall", "--gpus", gpus, "--part", "1/2", "--out", out, "--entries", entries]
    run("tune_suite", *given, suite=lambda dtype, layout: [*PROBLEMS, PROBLEMS[0]])
    found = json.loads(out.read_text())
    assert (found["problems"], found["failed"], found["won"]) == (2, 0, 2)
    assert [row["problem"] for row in found["rows"]] == [str(PROBLEMS[1]), str(PROBLEMS[0])]
    for row in found["rows"]:
        problem = GemmProblem.parse(row["problem"])
        assert GemmConfig.from_dict(row["config"]) == fake_laboratory.winner(problem)
        assert row["ratio"] == pytest.approx(1.1)
        assert row["measured"] + row["infeasible"] > 20
    assert found["geomean_of_verdicts"] == pytest.approx(1.1)
    assert len(read_entries(entries)[0]) == 2


def test_three_winners_are_compared_and_rounds_kept(run, load, fake_laboratory, tmp_path):
    out = tmp_path / "winners.json"
    problems = PROBLEMS[:2]
    other = fake_laboratory.seeds(PROBLEMS[0])[5]  # 150 us, for the winner's 100
    best = {str(problem): fake_laboratory.winner(problem).to_dict() for problem in problems}
    kept = {**best, str(PROBLEMS[0]): other.to_dict()}
    out.write_text(json.dumps({"rounds": [kept, best]}))
    run("tune_suite", "winners", "--count", 2, "--out", out, suite=lambda *_: problems)
    found = json.loads(out.read_text())
    assert found["rounds"] == [kept, best, best]
    assert [row["times_us"] for row in found["rows"]] == [[150, 100, 100], [1, 1, 1]]
    assert [row["apart"] for row in found["rows"]] == [0.5, 0.0]


def test_quack_is_a_contender(run, load, tmp_path):
    class Measurer:
        def __init__(self, problem, gpu, multiply):
            assert multiply.__name__ == "multiply"

        def race(self, configs, ms):
            times = (100.0, 104.0, 102.0)  # ours, quack, torch
            assert configs[2] == TORCH
            found = [
                Measurement(config, us, us, us, "sustained")
                for config, us in zip(configs, times, strict=True)
            ]
            return Race(tuple(found), tuple((us,) * 8 for us in times))

    out = tmp_path / "quack.json"
    changes = {"Measurer": Measurer, "version": lambda name: "0.6", "calibrated": lambda gpu: gpu}
    run("quack_suite", "--problems", str(PROBLEMS[2]), "--out", out, **changes)
    found = json.loads(out.read_text())
    assert found["geomean_over_quack"] == pytest.approx(1.04)
    assert found["geomean_over_torch"] == pytest.approx(1.02)
    assert found["quack"] == "0.6"
