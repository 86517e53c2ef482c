"""`autoswizzle tune` around a search that needs no GPU."""

import json
import sys
import types
from dataclasses import dataclass, field

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import UnavailableError
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.results import TuneResult

H200 = find_gpu("H200")


@dataclass
class Report:
    results: list[TuneResult] = field(default_factory=list)

    def to_dict(self):
        return {"results": [str(result.problem) for result in self.results]}


def entry(problem, config=GemmConfig()):  # noqa: B008  # frozen
    key = key_for(problem, H200, source="", triton=(3, 6))
    return CacheEntry(key, config, time_us=10.0, torch_us=11.0, ratio=1.1, trials=7)


class FakeTuning(types.ModuleType):
    """Stands for autoswizzle.tuning: records its call, answers with a result for each problem."""

    def __init__(self):
        super().__init__("autoswizzle.tuning")
        self.calls = []
        self.answer = lambda problem: TuneResult(problem, entry(problem), measured=7)

    def tune(self, problems, **options):
        self.calls.append((list(problems), options))
        return Report([self.answer(problem) for problem in problems])


@pytest.fixture
def tuning(monkeypatch):
    import autoswizzle

    fake = FakeTuning()
    monkeypatch.setitem(sys.modules, "autoswizzle.tuning", fake)
    monkeypatch.setattr(autoswizzle, "tuning", fake, raising=False)
    monkeypatch.setattr("autoswizzle.cli.tune.present_gpu", lambda device: H200)
    return fake


def test_options_reach_the_search(tuning, tmp_path, capsys):
    path = tmp_path / "more.txt"
    path.write_text("8x8x8:fp16\n")
    out = tmp_path / "new" / "out.json"
    options = ["--effort", "quick", "--trials", "5", "--seconds", "2.5", "--device", "1"]
    options += ["--storage", "sqlite:///s.db", "--file", str(path), "--out", str(out)]
    assert run(["tune", "4x4x4", *options]) == 0
    [(problems, passed)] = tuning.calls
    assert problems == [GemmProblem(4, 4, 4), GemmProblem(8, 8, 8, "fp16")]
    assert passed == {
        "effort": "quick",
        "trials": 5,
        "seconds": 2.5,
        "margin": None,
        "devices": [1],
        "backend": None,
        "storage": "sqlite:///s.db",
        "out": out,
        "force": False,
        "from_scratch": False,
    }
    assert out.parent.is_dir()
    assert "tuned" in capsys.readouterr().out


def test_a_search_from_scratch_is_asked_for(tuning):
    assert run(["tune", "4x4x4", "--from-scratch"]) == 0
    [(_, passed)] = tuning.calls
    assert passed["from_scratch"] is True


@pytest.mark.parametrize(("percent", "share"), [("1", 0.01), ("0", 0), ("2.5", 0.025)])
def test_a_margin_is_given_in_percent(tuning, percent, share):
    assert run(["tune", "4x4x4", "--margin", percent]) == 0
    [(_, passed)] = tuning.calls
    assert passed["margin"] == share


def test_a_kept_torch_and_a_skipped_problem_are_success_and_said(tuning, capsys):
    tuning.answer = lambda problem: (
        TuneResult(problem, entry(problem, TORCH), measured=7)
        if problem.m == 4
        else TuneResult(problem, entry(problem), skipped=True)
    )
    assert run(["tune", "4x4x4", "8x8x8"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].endswith("tuned, torch kept: no clear win")
    assert "skipped: tuned before" in out.splitlines()[2]
    assert err == ""


def test_a_failed_problem_is_listed_with_its_reason_and_exits_1(tuning, capsys):
    good = tuning.answer
    tuning.answer = lambda problem: (
        TuneResult(problem, error="every candidate failed") if problem.m == 8 else good(problem)
    )
    assert run(["tune", "4x4x4", "8x8x8", "2x2x2"]) == 1
    out, err = capsys.readouterr()
    assert "1 of 3 problems failed" in err
    assert "8x8x8:bf16:nn: every candidate failed" in err
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "4x4x4:bf16:nn",
        "8x8x8:bf16:nn",
        "2x2x2:bf16:nn",
    ]


def test_interruption_exits_130_in_one_line(tuning, capsys):
    def interrupted(problem):
        raise KeyboardInterrupt

    tuning.answer = interrupted
    assert run(["tune", "4x4x4"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    kept, interrupted = err.splitlines()
    assert "kept" in kept
    assert interrupted == "error: interrupted"


def test_json_is_all_that_stdout_holds(tuning, capsys):
    assert run(["tune", "4x4x4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"results": ["4x4x4:bf16:nn"]}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--libtypo", "x"], ["--libtypo", "--file", "--effort"]),
        ([], ["nothing to tune", "MxNxK"]),
        (["--file", "missing.txt"], ["--file must be", "missing.txt"]),
        (["128x64"], ["'128x64'"]),
        (["4x4x4", "--dtype", "fp17"], ["--dtype must be one of", "'fp17'"]),
        (["4x4x4", "--trials", "0"], ["--trials must be an integer of at least 1", "'0'"]),
        (["4x4x4", "--seconds", "-1"], ["--seconds must be a number above 0", "'-1'"]),
        (["4x4x4", "--seconds", "inf"], ["--seconds must be a number above 0", "'inf'"]),
        (["4x4x4", "--margin", "-1"], ["--margin must be a number from 0 to below 100", "'-1'"]),
        (["4x4x4", "--margin", "100"], ["--margin must be a number from 0 to below 100", "'100'"]),
        (["4x4x4", "--margin", "nan"], ["--margin must be a number from 0", "'nan'"]),
        (["4x4x4", "--effort", "mild"], ["--effort must be one of quick, standard", "'mild'"]),
        (["4x4x4", "--storage", "here"], ["--storage must be a URL", "'here'"]),
        (["4x4x4", "--device", "one"], ["--device must be an integer of at least 0", "'one'"]),
        (["4x4x4", "--out", "."], ["output must be a file", "'.'"]),
        (["4x4x4", "--gpus", "0,"], ["--gpus must be all or numbers", "'0,'"]),
        (["4x4x4", "--gpus", "9" * 5000], ["--gpus must be all or numbers"]),
        (["4x4x4", "--gpus", "x", "--dry-run"], ["--gpus must be all or numbers", "'x'"]),
        (["4x4x4", "--gpus", "all", "--device", "0"], ["--device must go without --gpus"]),
        (["4x4x4", "--backend", "x", "--dry-run"], ["--backend must be dask://HOST:PORT", "'x'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_arguments_start_nothing(tuning, capsys, tmp_path, monkeypatch, args, named):
    monkeypatch.chdir(tmp_path)
    assert run(["tune", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(text in err for text in named), err
    assert tuning.calls == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ['{"name": "left-pad"}', "[]", "not json", "", "3"])
def test_a_foreign_output_file_is_refused_untouched(tuning, capsys, tmp_path, content):
    out = tmp_path / "package.json"
    out.write_text(content)
    assert run(["tune", "4x4x4", "--out", str(out)]) == 2
    assert "package.json" in capsys.readouterr().err
    assert out.read_text() == content
    assert tuning.calls == []


@pytest.mark.parametrize("out", ["/dev/full", "/dev/null/x/y.json"])
def test_an_output_that_cannot_be_written_fails_before_the_first_trial(tuning, capsys, out):
    assert run(["tune", "4x4x4", "--out", out]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert out.rpartition("/")[0] in err
    assert tuning.calls == []


def test_no_device_is_one_line(tuning, capsys, monkeypatch):
    def missing(device):
        raise UnavailableError(f"no CUDA device {device}: torch finds none")

    monkeypatch.setattr("autoswizzle.cli.tune.present_gpu", missing)
    assert run(["tune", "4x4x4"]) == 1
    assert capsys.readouterr().err.startswith("error: no CUDA device 0")
    assert tuning.calls == []
