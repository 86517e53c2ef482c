"""What a run of `autoswizzle tune` leaves when a problem fails or the user stops it.

The real tuning and cache, around a search that answers at once.
"""

import json

import pytest

from autoswizzle import tuning
from autoswizzle.cache.index import read_entries
from autoswizzle.cache.store import shared_store
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.dispatch import dispatcher
from autoswizzle.errors import TuneError
from autoswizzle.hardware import find_gpu
from autoswizzle.misses import FILE_NAME, MissLog
from autoswizzle.problem import GemmProblem
from autoswizzle.search.finals import Final
from autoswizzle.search.measure import Measurement
from autoswizzle.search.study import SearchResult
from autoswizzle.settings import settings

H200 = find_gpu("H200")
OURS = GemmConfig(swizzle="hilbert")


def found():
    own, torch = Measurement(OURS, 8.0, 7.9, 8.1, "x"), Measurement(TORCH, 10.0, 9.9, 10.1, "x")
    final = Final(OURS, OURS, 1.25, 1.2, 1.3, (own, torch), (own, torch))
    return SearchResult(own, (own, torch), (), None, "trials", final)


def next_process():
    """Forget what a process remembers."""
    for cached in (settings, dispatcher, shared_store):
        cached.cache_clear()


@pytest.fixture
def searched(fresh, monkeypatch):
    """The m of each problem searched; outcomes maps m to an exception to raise instead."""
    searches, outcomes = [], {}

    def search(self, problem, progress, seeds):
        searches.append(problem.m)
        if problem.m in outcomes:
            raise outcomes[problem.m]
        return found()

    monkeypatch.setattr(tuning.Laboratory, "search", search)
    monkeypatch.setattr(tuning.Laboratory, "announce", lambda self, problem, seeds: None)
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    monkeypatch.setattr("autoswizzle.verdicts.versions", lambda: {"torch": "2.11"})
    monkeypatch.setattr("autoswizzle.cli.tune.present_gpu", lambda device: H200)
    return searches, outcomes


def saved(out):
    entries, problem = read_entries(out)
    assert problem == ""
    return sorted(entry.key.problem.m for entry in entries)


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "3.txt"
    path.write_text("16x64x64\n32x64x64\n64x64x64\n")
    return str(path)


def test_a_failed_problem_costs_no_other(searched, shapes, tmp_path, capsys):
    searches, outcomes = searched
    out = tmp_path / "f.json"
    outcomes[32] = TuneError("all 20 candidates failed: 20 CompileError")
    assert run(["tune", "--file", shapes, "--out", str(out)]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-2].startswith("error: 1 of 3 problems failed")
    assert err[-1] == "error: 32x64x64:bf16:nn: all 20 candidates failed: 20 CompileError"
    assert saved(out) == [16, 64]
    assert searches == [16, 32, 64]


def test_each_problem_is_saved_before_the_next_starts(searched, shapes, tmp_path, monkeypatch):
    searches, _ = searched
    out = tmp_path / "f.json"
    seen = []

    def search(self, problem, progress, seeds):
        searches.append(problem.m)
        seen.append(saved(out) if out.exists() else [])
        return found()

    monkeypatch.setattr(tuning.Laboratory, "search", search)
    assert run(["tune", "--file", shapes, "--out", str(out)]) == 0
    assert seen == [[], [16], [16, 32]]


def test_interrupted_it_keeps_what_is_done_and_continues(searched, shapes, tmp_path, capsys):
    searches, outcomes = searched
    out = tmp_path / "f.json"
    outcomes[32] = KeyboardInterrupt()
    assert run(["tune", "--file", shapes, "--out", str(out)]) == 130
    kept, interrupted = capsys.readouterr().err.splitlines()
    assert "kept" in kept
    assert interrupted == "error: interrupted"
    assert saved(out) == [16]
    assert searches == [16, 32]
    outcomes.clear()
    next_process()
    assert run(["tune", "--file", shapes, "--out", str(out)]) == 0
    assert searches == [16, 32, 32, 64]
    first, second, third = capsys.readouterr().out.splitlines()[1:]
    assert "skipped: tuned before" in first
    assert "skipped" not in second + third
    assert saved(out) == [16, 32, 64]


def test_what_is_tuned_is_what_a_lookup_finds(searched, capsys):
    assert run(["tune", "16x64x64"]) == 0
    capsys.readouterr()
    next_process()
    assert run(["explain", "16x64x64", "--gpu", "H200", "--json"]) == 0
    decision = json.loads(capsys.readouterr().out)
    assert decision["source"] == "cache"
    assert decision["config"] == OURS.to_dict()


def test_what_was_multiplied_untuned_can_be_tuned(searched, fresh, capsys):
    assert run(["tune", "--from-misses"]) == 2
    assert "nothing to tune" in capsys.readouterr().err
    MissLog(fresh / FILE_NAME).add(GemmProblem(16, 64, 64), "H200")
    assert run(["tune", "--from-misses"]) == 0
    assert searched[0] == [16]


def test_an_unwritable_cache_fails_before_the_first_search(searched, tmp_path, monkeypatch, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(blocker / "cache"))
    next_process()
    assert run(["tune", "16x64x64"]) == 1
    err = capsys.readouterr().err
    assert str(blocker / "cache") in err
    assert searched[0] == []


def test_an_output_keeps_its_other_entries_and_unknown_fields(searched, tmp_path, capsys):
    out = tmp_path / "f.json"
    assert run(["tune", *(f"{m}x8x8" for m in (1, 2, 4, 8, 16)), "--out", str(out)]) == 0
    data = json.loads(out.read_text())
    data["note"] = "ours"
    out.write_text(json.dumps(data))
    assert run(["tune", "64x64x64", "--out", str(out)]) == 0
    assert saved(out) == [1, 2, 4, 8, 16, 64]
    assert json.loads(out.read_text())["note"] == "ours"
