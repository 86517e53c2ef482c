"""The benchmarks that search, on a laboratory that answers from formulas."""

import json
import re
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from autoswizzle import tuning
from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import export_entries, read_entries
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.errors import LaunchError
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import source_hash
from autoswizzle.problem import GemmProblem
from autoswizzle.results import TuneReport
from autoswizzle.search.bench import Racing
from autoswizzle.search.measure import Measurement, Race
from autoswizzle.search.timing import LONG, SHORT

ROOT = Path(__file__).parents[2]
H200 = find_gpu("H200")
PROBLEMS = [GemmProblem.parse(f"{m}x4096x4096:bf16:nt") for m in (1024, 2048, 4096)]


@pytest.fixture
def run(load, fresh, fake_laboratory, monkeypatch, tmp_path):
    """Runs a benchmark's main with these arguments; returns its module and what it wrote."""
    monkeypatch.setattr(tuning, "detect", lambda device: H200)
    monkeypatch.setattr(tuning, "Laboratory", fake_laboratory.FakeLaboratory)
    monkeypatch.setattr(
        "autoswizzle.verdicts.versions", lambda: {"torch": "2.11", "triton": "3.6.0"}
    )

    def ran(name, *arguments, **changes):
        module = load(name)
        monkeypatch.setattr(module, "detect", lambda device: H200)
        monkeypatch.setattr(module, "Laboratory", fake_laboratory.FakeLaboratory, raising=False)
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

    hungry = json.loads(path.read_text())  # of the first, whose interval at own clocks is below 1
    hungry["rows"][0]["own"]["ratio_high"] = 0.999
    hungry["rows"][1]["since"] = {"date": "2026-01-01", "source": "older"}
    hot, alone = tmp_path / "hot.json", tmp_path / "alone.json"
    hot.write_text(json.dumps(hungry))
    monkeypatch.setattr(sys, "argv", ["ship.py", str(hot), str(alone)])
    load("ship").main()
    found = {str(entry.key.problem): entry for entry in read_entries(alone)[0]}
    assert [found[text].config for text in texts] == [TORCH, *expected[1:]]
    dates = [hungry["date"], "2026-01-01", hungry["date"]]  # when they were measured
    assert [found[text].date for text in texts] == dates

    shared = read_entries(shipped)[0]
    [lost] = [entry for entry in shared if entry.config == TORCH]
    assert lost.fastest == fake_laboratory.winner(PROBLEMS[2])
    assert lost.fastest_ratio == pytest.approx(1.01)
    whole, unsaid = shipped.read_text(), {"fastest": None, "fastest_ratio": None}
    older = [replace(lost, **unsaid), *(entry for entry in shared if entry != lost)]
    other = replace(older[0], key=replace(lost.key, triton="2.0"), torch_us=lost.torch_us * 1.1)
    for entries, completes in ((older, 1), ([other], 0), (shared, 0)):
        shipped.unlink()
        export_entries(shipped, entries)
        before = shipped.read_text()
        monkeypatch.setattr(sys, "argv", ["ship.py", "--fastest", str(path), str(shipped)])
        load("ship").main()
        assert (shipped.read_text() != before) == completes
        assert shipped.read_text() == (whole if completes else before)


@pytest.mark.parametrize(
    ("torch_us", "options", "seeds"),
    [(110.0, [], [2]), (90.0, [], [3]), (110.0, ["--own-ms", 0], [2, 3])],
    ids=["the final's", "another", "another asked for"],
)
def test_own_clocks_are_raced_where_no_final_did_or_as_asked(
    run, fake_laboratory, monkeypatch, tmp_path, torch_us, options, seeds
):
    """A race that fails costs its problem, not the suite."""
    raced = []

    class Bench(fake_laboratory.Bench):
        def __call__(self, task):
            if isinstance(task, Racing) and task.turn == LONG:
                raced.append(task)
                if task.problem == PROBLEMS[0]:
                    raise LaunchError("no answer", "Hung")
            return super().__call__(task)

    monkeypatch.setattr(fake_laboratory, "Bench", Bench)
    monkeypatch.setattr(fake_laboratory.FakeLaboratory, "torch_us", torch_us)
    arguments = ["--out", tmp_path, "--seeds", 8, "--finalists", 1, *options, "--problems"]
    run("gemm_suite", *arguments, *map(str, PROBLEMS[:2]))
    failed, row = json.loads((tmp_path / "suite-bf16-nt.json").read_text())["rows"]
    assert failed["error"].endswith("no answer")
    assert row["own"] == dict.fromkeys(("ratio", "ratio_low", "ratio_high"), torch_us / 100)
    assert [task.seed for task in raced if task.problem == PROBLEMS[1]] == seeds


@pytest.mark.parametrize("options", [[], ["--fastest"]])
def test_a_target_that_is_no_cache_file_is_told_in_one_line(load, monkeypatch, tmp_path, options):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rows": []}))
    monkeypatch.setattr(sys, "argv", ["ship.py", *options, str(path), str(path)])
    with pytest.raises(SystemExit, match=rf"^cannot add to {re.escape(str(path))}: .+$"):
        load("ship").main()
    assert json.loads(path.read_text()) == {"rows": []}


def test_known_winners_are_tried_first(run, fake_laboratory, tmp_path):
    """Whatever their dtype; those of other extents or another layout are not."""
    known, [problem, other, _] = tmp_path / "known.json", PROBLEMS
    odd = fake_laboratory.seeds(problem)[-1]  # not among the predictions tried
    rows = [
        {"problem": str(problem), "config": odd.to_dict()},
        {"problem": f"{problem.m}x4096x4096:bf16:nn", "config": GemmConfig().to_dict()},
        {"problem": str(other), "config": GemmConfig(block_m=64).to_dict()},
        {"problem": str(problem), "error": "failed"},
    ]
    known.write_text(json.dumps({"rows": rows}))
    arguments = ["--out", tmp_path, "--dtype", "fp16", "--seeds", 4, "--known", known]
    run("gemm_suite", *arguments, "--problems", str(replace(problem, dtype="fp16", out_dtype="")))
    [row] = json.loads((tmp_path / "suite-fp16-nt.json").read_text())["rows"]
    tried = [*row["screened"], *row["infeasible"]]
    configs = [GemmConfig.from_dict(item["config"]) for item in tried]
    assert odd in configs
    assert GemmConfig(block_m=64) not in configs


@pytest.mark.kernel
def test_results_stay_while_their_machine_code_does(load, monkeypatch, tmp_path):
    """A package against itself keeps all rows; a row of other code in the old one goes."""
    module = load("same_code")
    monkeypatch.setattr(module, "versions", lambda: {"triton": "3.6.0"})
    old = tmp_path / "old"
    for package, folder in (("", "autoswizzle"), ("kernels", "kernels"), ("cache", "cache")):
        shutil.copytree(ROOT / folder, old / "autoswizzle" / package, dirs_exist_ok=True)
    with (old / "autoswizzle/kernels/pointer.py").open("a") as file:
        file.write("\nUNUSED = 0\n")  # another source of the same code
    older = module.of_package(str(old), []).sources["pointer"]
    assert older != source_hash("pointer")
    configs = [GemmConfig(), GemmConfig(num_stages=2)]
    rows = [
        {"problem": str(PROBLEMS[0]), "config": config.to_dict(), "ratio": ratio,
         "dispatched": ratio, "own": {"ratio": ratio}}
        for config, ratio in zip(configs, (1.0, 4.0), strict=True)
    ]  # fmt: skip
    made = {
        "gpu": H200.name, "date": "2026-01-01", "versions": {"triton": "3.6.0"},
        "sources": {"pointer": older}, "rows": [*rows, {"problem": "x", "error": "failed"}],
    }  # fmt: skip
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(made))
    for folder in (tmp_path, ROOT):  # whose kernels are those installed: all would stay
        monkeypatch.setattr(sys, "argv", ["same_code.py", str(folder), str(path)])
        with pytest.raises(SystemExit, match="must hold the package's kernels, got"):
            module.main()
    monkeypatch.setattr(sys, "argv", ["same_code.py", str(old), str(path)])
    module.main()
    found = json.loads(path.read_text())
    assert found["sources"] == {"pointer": source_hash("pointer")}
    assert [row["config"] for row in found["rows"]] == [row["config"] for row in rows]
    assert [row["since"] for row in found["rows"]] == [{"date": "2026-01-01", "source": older}] * 2
    kept = path.read_text()
    module.main()
    assert path.read_text() == kept  # of the kernel as it is: not judged again

    path.write_text(json.dumps({**made, "sources": {"pointer": "oldest"}}))
    unjudged = path.read_text()
    with pytest.raises(SystemExit, match="must hold the pointer kernel of 2026-01-01, got another"):
        module.main()
    assert path.read_text() == unjudged

    of_package = module.of_package

    def one_is_other(folder, tasks):
        sources, codes = of_package(folder, tasks)
        return module.Package(sources, ["other", *codes[1:]] if folder else codes)

    monkeypatch.setattr(module, "of_package", one_is_other)
    path.write_text(json.dumps(made))
    module.main()
    found = json.loads(path.read_text())
    assert [row["config"] for row in found["rows"]] == [rows[1]["config"]]
    assert (found["problems"], found["geomean"]) == (1, pytest.approx(4.0))
    path.write_text(json.dumps({**made, "rows": rows[:1], "problems": 1, "geomean": 1.0}))
    module.main()
    found = json.loads(path.read_text())
    assert found["rows"] == []
    assert not {"problems", "geomean"} & set(found)  # of rows that are gone
    first, second = module.codes([(row["config"], row["problem"], H200.name) for row in rows])
    assert first != second


def test_entries_stay_while_their_machine_code_does(load, monkeypatch, tmp_path):
    """Those of edited kernels, by the edited source; others, and torch's, as they are.

    One of neither source would not be judged by code that it was not measured with.
    """
    module, path = load("same_code"), tmp_path / "entries.json"
    monkeypatch.setattr(module, "versions", lambda: {"triton": "3.6.0"})
    now = source_hash("pointer")
    kept, gone, current, oldest = (GemmConfig(num_stages=stages) for stages in (3, 4, 5, 6))
    made = [
        entry_of(problem, config, source)
        for problem, config, source in (
            (PROBLEMS[0], kept, "older"), (PROBLEMS[1], gone, "older"),
            (PROBLEMS[2], current, now), (replace(PROBLEMS[0], m=512), TORCH, ""),
            (replace(PROBLEMS[0], m=256), oldest, "oldest"),
        )
    ]  # fmt: skip
    export_entries(path, made)
    asked = []

    def of_package(folder, tasks):
        asked.append([task[:2] for task in tasks])
        codes = [f"{task} {folder if task[0] == gone.to_dict() else ''}" for task in tasks]
        return module.Package({"pointer": "older" if folder else now}, codes)

    monkeypatch.setattr(module, "of_package", of_package)
    monkeypatch.setattr(sys, "argv", ["same_code.py", "old", "--entries", str(path)])
    module.main()
    edited = [
        (entry.config.to_dict(), str(entry.key.problem)) for entry in (made[0], made[1], made[4])
    ]
    assert [sorted(tasks, key=str) for tasks in asked] == [sorted(edited, key=str)] * 2
    left = {entry.key.digest: entry for entry in read_entries(path)[0]}
    expected = [replace(made[0], key=replace(made[0].key, source=now)), *made[2:]]
    assert left == {entry.key.digest: entry for entry in expected}

    export_entries(path, [replace(made[1], key=replace(made[1].key, triton="3.9"))])
    with pytest.raises(SystemExit, match=r"triton must be 3\.9, got 3\.6\.0"):
        module.main()
    assert len(read_entries(path)[0]) == 5  # as it was

    monkeypatch.setattr(sys, "argv", ["same_code.py", "old"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2  # nothing to do


def entry_of(problem, config, source):
    won = config != TORCH
    return CacheEntry(
        key=key_for(problem, H200, source, (3, 6)), config=config, time_us=1.0,
        torch_us=1.5 if won else 1.0, ratio=1.5 if won else 1.0, ratio_low=1.4 if won else None,
        ratio_high=1.6 if won else None, method="sustained", trials=9, effort="suite",
        date="2026-01-01", gpu=H200.name, versions={},
    )  # fmt: skip


@pytest.mark.kernel
def test_results_go_where_a_launch_is_another_of_the_same_code(load, monkeypatch):
    """What the host decides counts: the grid, the share of k steps of a wave's end."""
    module = load("same_code")
    plain = GemmConfig().to_dict(), str(PROBLEMS[0]), H200.name
    before = module.code(plain)
    family = import_module("autoswizzle.kernels.pointer")
    call = family.call
    monkeypatch.setattr(family, "call", lambda *given: replace(call(*given), tiles=7))
    assert module.code(plain) != before
    shared = GemmConfig(
        kernel="wgmma", block_n=256, block_k=64, num_stages=4, persistent=True, epilogue_subtile=4,
        warp_specialize="cooperative", stream_k=True,
    )  # fmt: skip
    problem = GemmProblem(1024, 4352, 4096, "bf16", "nt")  # 136 tiles
    before = module.launch(shared, problem, H200)
    monkeypatch.setattr("autoswizzle.space.geometry.ADDED_STEPS", 0)
    assert module.launch(shared, problem, H200) != before


@pytest.mark.parametrize("gpus", ["0", "0,1"])
def test_wall_time_and_finals_of_a_part_of_the_suite(
    run, fake_laboratory, monkeypatch, tmp_path, gpus
):
    out, entries = tmp_path / "wall.json", tmp_path / "entries.json"
    given = ["wall", "--gpus", gpus, "--part", "1/2", "--out", out, "--entries", entries]
    asked, tune = [], tuning.tune

    def recorded(problems, **options):
        asked.append(options["from_scratch"])
        return tune(problems, **options)

    monkeypatch.setattr(tuning, "tune", recorded)
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
    assert asked == [True]


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


def test_tiles_are_raced_at_one_clock_and_at_their_own(run, tmp_path):
    class Measurer:
        def __init__(self, problem, gpu, multiply):
            pass

        def race(self, configs, ms, turn=SHORT):
            assert configs[0] == TORCH
            spent.append(ms * len(configs))
            found = tuple(Measurement(config, 1, 1, 1, "sustained") for config in configs)
            ours = (80.0,) * 5 + (50.0,) * 4 if turn == SHORT else (125.0,) * 5 + (200.0,) * 4
            return Race(found, ((100.0,) * 9, *[ours] * (len(configs) - 1)))

    out = tmp_path / "own.json"
    ahead, spent = [], []
    changes = {"Measurer": Measurer, "compile_ahead": lambda *given: ahead.append(given)}
    run("own_clocks", "--problems", str(PROBLEMS[2]), "--out", out, **changes)
    rows = json.loads(out.read_text())["rows"]
    assert [GemmConfig.from_dict(row["config"]) for row in rows] == ahead[0][0] != []
    for row in rows:
        assert (row["problem"], row["one_clock"], row["own"]) == (
            str(PROBLEMS[2]), [1.25, 1.25, 2.0], [0.8, 0.5, 0.8],
        )  # fmt: skip

    run("own_clocks", "--out", out, **changes)
    script = (ROOT / "benchmarks/run_all.sh").read_text()
    [limit] = re.findall(r"own\(\) { limited (\d+) ", script)
    assert int(limit) > 1.5 * sum(spent) / 1e3  # seconds; tiles are compiled besides


@pytest.mark.parametrize(("given", "margin"), [(["--margin", "0.01"], 0.01), ([], 0.02)])
def test_a_models_results_tell_the_margin_of_its_verdicts(
    load, monkeypatch, tmp_path, given, margin
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    model, asked = load("model"), []
    replaced = {
        "detect": lambda device: H200,
        "stamp": lambda gpu: {},
        "build": lambda shape, device: None,
        "work_of": lambda *_: lambda: None,
        "gemm_share": lambda work: 0.5,
        "versions_of": lambda *_, **__: (None, None),
        "race": lambda *_: (1.0, 1.0, 1.0, 1.0),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(model, name, value)
    monkeypatch.setattr(
        "autoswizzle.tune", lambda _, **options: asked.append(options) or TuneReport(())
    )
    monkeypatch.setattr("autoswizzle.prepare", lambda problems: [])
    arguments = ["model.py", "--only", "train", "--out", str(tmp_path), *given]
    monkeypatch.setattr(sys, "argv", arguments)
    with torch.compiler.config.patch(force_disable_caches=True):  # which it sets
        model.main()
    assert json.loads((tmp_path / "model.json").read_text())["margin"] == margin
    assert [options["margin"] for options in asked] == [margin if given else None]


def test_the_order_sweep_keeps_what_it_measured_of_this_configuration(load, tmp_path):
    sweep, path = load("order_sweep"), tmp_path / "order_sweep.json"
    assert sweep.kept(path) == {}
    old, older = {"problem": "one", "best": "row"}, {"problem": "two", "since": {"date": "May"}}
    made = {"date": "June", "versions": {"triton": "3.9"}, "problems": [old, older]}
    path.write_text(json.dumps({**made, "base": sweep.BASE.to_dict()}))
    since = {"date": "June", "versions": {"triton": "3.9"}}
    assert sweep.kept(path) == {"one": {**old, "since": since}, "two": older}
    path.write_text(json.dumps({**made, "base": replace(sweep.BASE, num_stages=3).to_dict()}))
    assert sweep.kept(path) == {}
