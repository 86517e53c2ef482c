"""The replay of recorded searches, on a small made-up table."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoswizzle import space
from autoswizzle.config import TORCH
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.search.measure import Measurement
from autoswizzle.simulator.ranking import rank

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location(
        "search_replay", ROOT / "benchmarks" / "search_replay.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(tmp_path, order, **extra):
    """60 configurations; order sorts the predictions into the measured times."""
    problem = GemmProblem(1024, 1024, 1024, "bf16", "nt")
    gpu = find_gpu("H200")
    tunables = space.branches(problem, gpu)["pointer"]
    few = {"pointer": {**tunables, "block_k": (64,), "num_stages": (3,), "swizzle": ("grouped",)}}
    ranked = rank(problem, gpu, top=10**6, configs=space.candidates(problem, gpu, few))
    predictions = ranked[:: len(ranked) // 60][:60]
    measured = []
    for place, item in enumerate(order(predictions)):
        time_us = 100.0 + 5 * place
        measured.append(Measurement(item.config, time_us, time_us, time_us, "sustained"))
    data = {
        "problem": str(problem),
        "gpu": "H200",
        "measurements": [item.to_dict() for item in measured],
        "predictions": [
            {"config": item.config.to_dict(), "time_us": 1.0 + place}
            for place, item in enumerate(predictions)
        ],
        **extra,
    }
    path = tmp_path / "table.json"
    path.write_text(json.dumps(data))
    return path


def test_a_right_prediction_gets_there_at_once_and_a_wrong_one_does_not(benchmark, tmp_path):
    right = benchmark.replay(table(tmp_path, list), 3, 60, "tpe")
    assert right.trials["seeded"] == [1, 1, 1]
    assert right.configs == 60
    wrong = benchmark.replay(table(tmp_path, lambda items: items[::-1]), 3, 60, "tpe")
    assert min(wrong.trials["seeded"]) > 18  # its seeds come first
    for result in (right, wrong):
        for counts in result.trials.values():
            assert all(1 <= count <= 60 for count in counts)  # every search exhausts the table
        assert len(set(result.trials["random"])) > 1


def test_a_random_search_is_uniform_over_the_table(benchmark, tmp_path):
    counts = benchmark.replay(table(tmp_path, list), 20, 60, "tpe").trials["random"]
    assert 15 < sum(counts) / 20 < 46  # 30.5 expected, standard error 3.9


def test_recorded_failures_count_as_trials(benchmark, tmp_path):
    path = table(tmp_path, list)
    data = json.loads(path.read_text())
    failed = data["measurements"].pop(0)["config"]
    data["infeasible"] = [{"config": failed, "kind": "CompileError", "reason": "no"}]
    path.write_text(json.dumps(data))
    assert benchmark.replay(path, 2, 60, "tpe").trials["seeded"] == [2, 2]


def test_a_search_that_never_gets_there_counts_one_more_than_it_made(benchmark, tmp_path):
    path = table(tmp_path, lambda items: items[::-1])
    assert benchmark.replay(path, 1, 5, "tpe").trials["seeded"][0] in (4, 5, 6)


def test_the_command_prints_and_stores_the_medians(benchmark, tmp_path, capsys):
    out = tmp_path / "out.json"
    path = table(tmp_path, list)
    benchmark.main([str(path), "--seeds", "2", "--trials", "60", "--out", str(out)])
    stored = json.loads(out.read_text())
    assert stored["median"]["seeded"] == 1
    assert stored["tables"][0]["problem"] == "1024x1024x1024:bf16:nt"
    assert "--seeds 2" in stored["command"]
    assert "1024x1024x1024:bf16:nt" in capsys.readouterr().out


def test_the_command_tells_where_efforts_end(benchmark, tmp_path, capsys):
    path = table(tmp_path, list)
    out = tmp_path / "ends.json"
    benchmark.main([str(path), "--efforts", "quick", "standard", "--seeds", "2", "--out", str(out)])
    stored = json.loads(out.read_text())
    for name, trials in (("quick", 13), ("standard", 21)):  # the seeds and torch: no gain after
        assert stored["efforts"][name] == {"trials": trials, "mean_loss": 0.0, "most_loss": 0.0}
        assert stored["tables"][0]["trials"][name] == [trials, trials]
    printed = capsys.readouterr().out
    assert "quick      13 trials" in printed
    assert "standard   21 trials" in printed


def test_the_loss_of_a_misled_search_is_told(benchmark, tmp_path, monkeypatch):
    short = replace(benchmark.EFFORTS["quick"], trials=3)  # two seeds and torch
    monkeypatch.setattr(benchmark, "EFFORTS", {"short": short})
    found = benchmark.ended(table(tmp_path, lambda items: items[::-1]), 2, ["short"])
    assert found.trials == {"short": [3, 3]}
    # the predictions' first two are the slowest of the table: 395 and 390 us; its best is 100
    assert found.loss == {"short": [pytest.approx(2.9)] * 2}


def test_torch_is_no_candidate_of_a_replay(benchmark, tmp_path):
    data = json.loads(table(tmp_path, list).read_text())
    data["measurements"].append(Measurement(TORCH, 1.0, 1.0, 1.0, "sustained").to_dict())
    held = benchmark.Table(data)
    assert TORCH not in list(held.configs())
    assert held.close_us == pytest.approx(102)
