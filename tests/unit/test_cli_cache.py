"""`autoswizzle cache` on folders and files of every kind; no GPU."""

import contextlib
import json
from dataclasses import replace

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import CacheStore, export_entries
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import WrongResultError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import source_hash
from autoswizzle.problem import GemmProblem
from autoswizzle.settings import settings
from autoswizzle.toolchain import triton_version

ONE, TWO = GemmProblem(64, 64, 64, "bf16", "nt"), GemmProblem(128, 64, 64, "fp16")


def entry(problem, config=GemmConfig(swizzle="hilbert"), **changes):  # noqa: B008  # frozen
    source = "" if config == TORCH else source_hash(config.kernel)
    key = key_for(problem, find_gpu("H200"), source, triton_version())
    facts = {"ratio": 1.25, "trials": 10, "date": "2026-01-02T03:04:05Z", "gpu": "H200"}
    return CacheEntry(key, config, 8.0, torch_us=10.0, **{**facts, **changes})


@pytest.fixture
def folder(fresh):
    return fresh


@pytest.fixture
def store(folder):
    store = CacheStore(folder, shipped=False)
    store.put(entry(ONE))
    store.put(entry(TWO, TORCH, trials=3))
    return store


def listed(capsys, *paths):
    capsys.readouterr()
    assert run(["cache", "ls", *map(str, paths), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_ls_of_nothing_makes_no_folder(folder, capsys):
    assert listed(capsys) == []
    assert not folder.exists()


def test_ls_says_what_was_chosen_and_whether_it_holds(store, capsys):
    store.put(entry(GemmProblem(8, 8, 8), origin="predicted"))
    old = entry(GemmProblem(16, 8, 8))
    store.put(replace(old, key=replace(old.key, triton="2.0")))
    stale = entry(GemmProblem(32, 8, 8))
    store.put(replace(stale, key=replace(stale.key, source="0" * 64)))
    rows = {row["problem"]: row for row in listed(capsys)}
    assert rows[str(ONE)]["chosen"] == "pointer 128x128x32 w4 s3 hilbert"
    assert rows[str(ONE)]["ratio"] == 1.25
    assert rows[str(TWO)]["chosen"] == "torch"
    states = {problem: row["state"] for problem, row in rows.items()}
    assert states == {
        str(ONE): "ok",
        str(TWO): "ok",
        "8x8x8:bf16:nn": "predicted",
        "16x8x8:bf16:nn": "outdated: triton 2.0",
        "32x8x8:bf16:nn": "outdated: kernel source",
    }


def test_ls_prints_a_table(store, capsys):
    assert run(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["id", "problem", "gpu"]
    assert any(str(ONE) in line and "H200" in line for line in lines)


def test_show_takes_a_problem_an_id_or_a_file(store, folder, tmp_path, capsys):
    exported = tmp_path / "f.json"
    export_entries(exported, [entry(ONE)])
    entry_file = folder / entry(ONE).key.file_name
    for what in (str(ONE), entry(ONE).key.digest[:8], str(exported), str(entry_file)):
        assert run(["cache", "show", what]) == 0
        assert json.loads(capsys.readouterr().out) == [entry(ONE).to_dict()]


@pytest.mark.parametrize(
    ("what", "code"), [("4x4x4", 1), ("4x4", 2), ("ffffffff", 2), ("x.json", 2)]
)
def test_show_of_what_is_not_there(store, capsys, what, code):
    assert run(["cache", "show", what]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert what in err


def test_show_of_a_damaged_file_says_why(folder, tmp_path, capsys):
    path = tmp_path / "f.json"
    path.write_text('{"schema": 1,')
    assert run(["cache", "show", str(path)]) == 1
    assert "not JSON" in capsys.readouterr().err


def test_export_merge_round_trip(store, folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "h200.json"
    assert run(["cache", "export", str(out), str(ONE)]) == 0
    assert [row["problem"] for row in listed(capsys, out)] == [str(ONE)]
    assert run(["cache", "export", str(out)]) == 0
    assert sorted(row["problem"] for row in listed(capsys, out)) == sorted([str(ONE), str(TWO)])
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path / "other"))
    settings.cache_clear()
    assert run(["cache", "merge", str(out)]) == 0
    assert "2 of 2 entries added" in capsys.readouterr().out
    assert len(list((tmp_path / "other").glob("*.json"))) == 2
    assert run(["cache", "merge", str(out)]) == 0
    assert "0 of 2 entries added" in capsys.readouterr().out


def test_export_keeps_the_other_entries_and_unknown_fields(store, tmp_path, capsys):
    out = tmp_path / "out.json"
    others = [entry(GemmProblem(m, 8, 8)) for m in (8, 16, 32, 64, 128)]
    export_entries(out, others)
    data = json.loads(out.read_text())
    data["note"] = "ours"
    data["entries"][0]["flavour"] = "sweet"
    out.write_text(json.dumps(data))
    assert run(["cache", "export", str(out)]) == 0
    data = json.loads(out.read_text())
    assert len(data["entries"]) == 7
    assert data["note"] == "ours"
    assert [item["flavour"] for item in data["entries"] if "flavour" in item] == ["sweet"]


def test_export_without_a_match_writes_nothing(store, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run(["cache", "export", str(out), "4x4x4"]) == 1
    assert "4x4x4:bf16:nn" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("command", [["export"], ["merge", "SOURCE", "--into"]])
def test_a_foreign_target_is_refused_untouched(store, tmp_path, capsys, command):
    target, source = tmp_path / "package.json", tmp_path / "source.json"
    target.write_text('{"name": "left-pad"}')
    export_entries(source, [entry(ONE)])
    args = [str(source) if arg == "SOURCE" else arg for arg in command]
    assert run(["cache", *args, str(target)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "package.json" in err
    assert target.read_text() == '{"name": "left-pad"}'


def test_merge_keeps_the_better_measured(folder, tmp_path, capsys):
    store = CacheStore(folder, shipped=False)
    store.put(entry(ONE, trials=50))
    better, worse = tmp_path / "better.json", tmp_path / "worse.json"
    export_entries(better, [entry(ONE, trials=99)])
    export_entries(worse, [entry(ONE, trials=10)])
    assert run(["cache", "merge", str(worse), str(better)]) == 0
    assert "1 of 2 entries added" in capsys.readouterr().out
    assert [found.entry.trials for found in CacheStore(folder, shipped=False).entries()] == [99]


def test_merge_into_a_file(tmp_path, folder, capsys):
    first, second, into = (tmp_path / f"{name}.json" for name in ("a", "b", "into"))
    export_entries(first, [entry(ONE)])
    export_entries(second, [entry(TWO)])
    assert run(["cache", "merge", str(first), str(second), "--into", str(into)]) == 0
    assert len(listed(capsys, into)) == 2
    assert not folder.exists()


def test_merge_of_a_missing_file(folder, capsys):
    assert run(["cache", "merge", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err


class FakeMeasurer:
    """Torch takes 10 us; a kernel what `own_us` says."""

    own_us = 8.0

    def __init__(self, problem, gpu, run, device):
        pass

    def race(self, configs, budget_ms):
        from autoswizzle.search.measure import Measurement, Race

        times = [10.0 if config == TORCH else self.own_us for config in configs]
        both = [Measurement(c, t, t, t, "sustained") for c, t in zip(configs, times, strict=True)]
        clocks = [1.0, 1.2, 1.0, 0.9, 1.1, 1.0]  # of each round, which both share
        return Race(tuple(both), tuple(tuple(t * clock for clock in clocks) for t in times))


@pytest.fixture
def timed(monkeypatch):
    import torch

    from autoswizzle.search import measure

    monkeypatch.setattr(measure, "Measurer", FakeMeasurer)
    monkeypatch.setattr("autoswizzle.cli.verify.present_gpu", lambda device: find_gpu("H200"))
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    return monkeypatch


def test_verify_times_own_kernels_of_this_gpu_again(store, folder, timed, capsys):
    store.put(entry(GemmProblem(8, 8, 8), origin="predicted"))
    other = entry(GemmProblem(16, 8, 8))
    store.put(replace(other, key=replace(other.key, num_sms=8)))
    assert run(["cache", "verify", str(folder), "--json"]) == 0
    [verdict] = json.loads(capsys.readouterr().out)
    assert (verdict["problem"], verdict["ratio"], verdict["drift"]) == (str(ONE), 1.25, 0)
    assert run(["cache", "verify", str(folder)]) == 0
    assert str(ONE) in capsys.readouterr().out


def test_verify_fails_on_a_loss_beyond_the_tolerance(store, folder, timed, capsys):
    timed.setattr(FakeMeasurer, "own_us", 8.8)  # 10 / 8.8 is 9.1 % below the stored ratio
    assert run(["cache", "verify", str(folder)]) == 1
    assert "drifted" in capsys.readouterr().out
    assert run(["cache", "verify", str(folder), "--tolerance", "10"]) == 0


def test_verify_fails_on_a_wrong_product(store, folder, timed, capsys):
    def wrong(self, configs, budget_ms):
        raise WrongResultError("3 of 9 elements are wrong")

    timed.setattr(FakeMeasurer, "race", wrong)
    assert run(["cache", "verify", str(folder)]) == 1
    assert "3 of 9 elements are wrong" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["OutOfMemoryError", "AcceleratorError", "RuntimeError"])
def test_verify_goes_on_beyond_what_torch_can_not_run(store, folder, timed, capsys, kind):
    """For want of memory for operands, or for what cuBLAS keeps, say."""
    import torch

    error = {"RuntimeError": RuntimeError}.get(kind) or getattr(torch, kind)

    def init(self, problem, gpu, run, device):
        if problem.m == 2048:
            raise error("tried to allocate\n16 TiB")

    timed.setattr(FakeMeasurer, "__init__", init)
    store.put(entry(GemmProblem(2048, 8, 8)))
    assert run(["cache", "verify", str(folder), "--json"]) == 1
    results = {v["problem"]: v["result"] for v in json.loads(capsys.readouterr().out)}
    assert results == {"2048x8x8:bf16:nn": "tried to allocate 16 TiB", str(ONE): "ok"}


def test_verify_of_nothing_is_a_failure(tmp_path, timed, capsys):
    assert run(["cache", "verify", str(tmp_path)]) == 1
    assert "H200" in capsys.readouterr().err


def test_prune_removes_left_overs_and_outdated_entries_only(store, folder, capsys):
    import os

    old = entry(GemmProblem(16, 8, 8))
    store.put(replace(old, key=replace(old.key, triton="2.0")))
    newer = folder / "newer.json"
    newer.write_text('{"schema": 99, "entries": []}')
    damaged, fresh, stale = (folder / name for name in ("x.json.1.damaged", ".a.1.tmp", ".b.2.tmp"))
    for path in (damaged, fresh, stale):
        path.write_text("{")
    os.utime(stale, (0, 0))
    assert run(["cache", "prune", "--outdated", "--dry-run"]) == 0
    assert "3 files to remove" in capsys.readouterr().out
    assert stale.exists()
    assert run(["cache", "prune"]) == 0
    assert not stale.exists()
    assert not damaged.exists()
    assert fresh.exists()
    assert len(listed(capsys)) == 3
    assert run(["cache", "prune", "--outdated"]) == 0
    assert {row["state"] for row in listed(capsys)} == {"ok"}
    assert newer.exists()


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["cache", "ls", "$/file"], "$/file"),
        (["cache", "export", "$/new"], "$/new: 1 written, 1 in all"),
        (["cache", "merge", "$/file"], "$: 0 of 1 entries added"),
        (["cache", "merge", "$/file", "--into", "$/new"], "$/new: 1 entries in all"),
        (["cache", "prune"], "$/x.damaged: left over, removed"),
        (["explain", str(ONE), "--gpu", "H200"], "  from $/"),
        (["doctor"], "cache        ok     $"),
        (["report"], "nothing tuned in $"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_paths_are_printed_without_newlines_and_terminal_codes(
    fresh, tmp_path, monkeypatch, capsys, args, line
):
    folder = tmp_path / "a\n\x1b[31m\u202e\udcff"  # that last one: a byte that is no UTF-8
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(folder))
    export_entries(folder / "file", [entry(ONE)])
    if args != ["report"]:
        CacheStore(folder, shipped=False).put(entry(ONE))
    (folder / "x.damaged").write_text("{")
    assert run([arg.replace("$", str(folder)) for arg in args]) in (0, 1)  # 1: doctor's, no driver
    out = capsys.readouterr().out
    shown = str(tmp_path / r"a\n\x1b[31m\u202e\udcff")
    assert any(line.replace("$", shown) in found for found in out.split("\n"))
    assert out.replace("\n", "").isprintable()


def test_an_unwritable_folder_fails_in_one_line(folder, tmp_path, monkeypatch, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(blocker / "cache"))
    settings.cache_clear()
    source = tmp_path / "source.json"
    export_entries(source, [entry(ONE)])
    assert run(["cache", "merge", str(source)]) == 1
    err = capsys.readouterr().err.splitlines()
    assert str(blocker / "cache") in err[-1]


@pytest.mark.parametrize("command", [["show"], ["merge"]])
def test_a_file_without_entries_fails_in_one_line_with_the_reason(
    folder, tmp_path, capsys, command
):
    source = tmp_path / "source.json"
    source.write_text("{")
    assert run(["cache", *command, str(source)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: no usable entry in {source}: not JSON")
    assert err.count("\n") == 1
