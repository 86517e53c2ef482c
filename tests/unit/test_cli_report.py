"""`autoswizzle report`: numbers of known entries and studies, and a page that is well-formed."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import CacheStore, export_entries
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import source_hash
from autoswizzle.problem import GemmProblem
from autoswizzle.toolchain import triton_version

H200, A10 = find_gpu("H200"), find_gpu("A10")
OURS = GemmConfig(swizzle="serpentine", group_size=16)
ONE, TWO, THREE = (GemmProblem(m, 512, 512) for m in (512, 1024, 2048))
WON = {"ratio": 1.21, "ratio_low": 1.2, "ratio_high": 1.22}
WON_SHOWN = ("1.200..1.220", "2026-11-30", "ok")


def entry(problem, config=OURS, *, gpu=H200, **changes):
    source = "" if config == TORCH else source_hash(config.kernel)
    key = key_for(problem, gpu, source, triton_version())
    facts = {"time_us": 10.0, "ratio": 1.0, "date": "2026-11-30T01:02:03+00:00", "gpu": gpu.name}
    return CacheEntry(key, config, **{**facts, **changes})


@pytest.fixture
def store(fresh):
    return CacheStore(fresh, shipped=False)


def reported(capsys, *args):
    capsys.readouterr()
    assert run(["report", "--json", *map(str, args)]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_empty_cache_says_how_to_fill_it(fresh, capsys):
    assert run(["report"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == f"nothing tuned in {fresh}"
    assert "autoswizzle tune 4096x4096x4096:bf16:nt" in out
    assert not fresh.exists()
    assert reported(capsys)["gpus"] == []


def test_the_table_and_its_summary(store, capsys):
    store.put(entry(ONE, **WON))
    store.put(entry(TWO, TORCH))
    assert run(["report"]) == 0
    title, *lines, summary = capsys.readouterr().out.splitlines()
    assert title == "H200 (nvidia-sm90-132sms-60MiB-227KiB)"
    assert [line.split() for line in lines] == [
        "problem kernel tile order us TFLOPS vs torch interval date state".split(),  # noqa: SIM905
        [str(ONE), "pointer", "128x128x32", "serpentine16", "10.0", "26.8", "1.210", *WON_SHOWN],
        [str(TWO), "torch", "-", "-", "10.0", "53.7", "1.000", "-", "2026-11-30", "ok"],
    ]
    assert summary == "problems 2, wins 1, geomean 1.100 x torch, left to torch 50 %"


def test_what_the_summary_counts(store, capsys):
    """A win needs an interval above 1; predicted entries count nowhere."""
    store.put(entry(ONE, **WON))
    store.put(entry(TWO, ratio=1.5, ratio_low=0.9, ratio_high=2.0))
    store.put(entry(THREE, TORCH))
    store.put(entry(GemmProblem(8, 8, 8), ratio=4.0, origin="predicted"))
    store.put(entry(GemmProblem(16, 8, 8), ratio=None))
    summary = reported(capsys)["summary"]
    assert summary.pop("geomean") == pytest.approx((1.21 * 1.5) ** (1 / 3))
    assert summary == {"problems": 4, "wins": 1, "torch_share": 0.25, "outdated": 0}


def test_a_win_by_a_smaller_margin_is_one(store, capsys, tmp_path):
    store.put(entry(ONE, ratio=1.01, ratio_low=1.005, ratio_high=1.015))
    page = tmp_path / "page.html"
    report = reported(capsys, "--html", page)
    assert report["summary"]["wins"] == 1
    [row] = report["gpus"][0]["problems"]
    assert (row["won"], row["beats_torch"]) == (True, False)
    assert 'class="win"' in page.read_text()


def test_only_predicted_entries_are_no_result(store, capsys):
    store.put(entry(ONE, origin="predicted"))
    assert run(["report"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no measured problem"


def test_of_several_entries_the_one_that_holds_counts_then_the_newest(store, tmp_path, capsys):
    newest = entry(ONE, date="2027-01-01", time_us=3.0)
    old_triton = replace(newest, key=replace(newest.key, triton="2.0"))
    file = tmp_path / "x.json"
    export_entries(file, [old_triton, entry(TWO, date="2027-01-01", time_us=4.0)])
    store.put(entry(ONE, time_us=5.0))
    store.put(entry(TWO, time_us=6.0))
    [gpu] = reported(capsys, "--file", file)["gpus"]
    assert [row["time_us"] for row in gpu["problems"]] == [5.0, 4.0]
    other = tmp_path / "y.json"
    export_entries(other, [replace(old_triton, key=replace(old_triton.key, problem=THREE))])
    report = reported(capsys, "--file", other)
    assert report["summary"]["outdated"] == 1
    assert report["gpus"][0]["problems"][-1]["state"] == "outdated: triton 2.0"


def test_gpus_are_told_apart_by_their_facts_not_their_names(store, capsys):
    store.put(entry(ONE, **WON))
    store.put(entry(TWO, TORCH, gpu=replace(H200, name="NVIDIA H200")))
    store.put(entry(ONE, TORCH, gpu=A10))
    assert run(["report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if "nvidia-sm" in line]
    assert len(titles) == 2
    assert any(line.startswith("A10 (nvidia-sm86") for line in titles)
    assert "H200, NVIDIA H200 (nvidia-sm90-132sms-60MiB-227KiB)" in titles
    assert lines[-1].startswith("all GPUs: problems 3, wins 1, geomean 1.066 x torch")


def test_damaged_entries_are_logged_and_passed_over(store, fresh, tmp_path, capsys):
    store.put(entry(ONE, **WON))
    (fresh / "bad.json").write_text("{")
    good = entry(TWO).to_dict()
    huge = entry(THREE).to_dict()
    huge["key"]["l2_bytes"] = 10**400
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"schema": 1, "entries": [good, 3, huge]}))
    assert run(["report", "--file", str(file), "--json"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["gpus"][0]["problems"]
    assert [row["problem"] for row in rows] == [str(ONE), str(TWO)]
    assert "ignoring cache file" in err
    assert f"ignoring {file}: 1 of 3 entries" in err
    assert f"ignoring an entry of {THREE}: no GPU is that large" in err


def test_a_time_no_clock_gives_is_still_json(store, capsys):
    store.put(entry(ONE, time_us=5e-324))
    assert reported(capsys)["gpus"][0]["problems"][0]["tflops"] is None


def test_searches_are_shown_beside_what_they_found(store, fresh, stored_search, capsys):
    stored_search.store(f"sqlite:///{fresh}/studies.sqlite3", ONE)
    store.put(entry(ONE, TORCH))
    assert run(["report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:2] == [str(ONE), "torch"]
    titles, row = lines[-2:]
    assert titles.startswith("problem              trials  measured  infeasible")
    assert titles.endswith("own vs torch      interval  Spearman")
    assert row.split() == [
        *(str(ONE), "6", "4", "1", "CompileError,", "1", "Hung"),
        *("3.000", "10.0", "15.0", "1.500", "1.400..1.600", "1.000"),
    ]


def test_searches_without_an_entry_and_of_another_storage(fresh, tmp_path, stored_search, capsys):
    url = f"sqlite:///{tmp_path}/other.db"
    stored_search.store(url, ONE)
    [gpu] = reported(capsys, "--storage", url)["gpus"]
    assert gpu["chip"] == H200.chip
    assert gpu["problems"] == []
    [study] = gpu["studies"]
    assert study["infeasible"] == {"CompileError": 1, "Hung": 1}
    assert study["curve"] == [[1, 30.0], [5, 10.0]]
    assert study["final"]["ratio_low"] == 1.4
    assert (study["spearman"], study["torch_us"], study["best"]["us"]) == (1.0, 15.0, 10.0)


def test_damaged_studies_are_logged_and_left_as_they_are(store, fresh, capsys):
    store.put(entry(ONE, **WON))
    path = fresh / "studies.sqlite3"
    path.write_bytes(b"no database")
    assert run(["report"]) == 0
    out, err = capsys.readouterr()
    assert "wins 1" in out
    assert "searches" not in out
    assert err.startswith("WARNING: ignoring the studies: storage sqlite:///")
    assert path.read_bytes() == b"no database"
    assert run(["report", "--storage", f"sqlite:///{path}"]) == 1


def page(fresh, tmp_path, capsys, *args):
    path = tmp_path / "report.html"
    assert run(["report", "--html", str(path), *args]) == 0
    out, err = capsys.readouterr()
    assert err.endswith(f"written: {path}\n")
    text = path.read_text()
    assert text.startswith("<!DOCTYPE html>\n<html")
    return text, ElementTree.fromstring(text), out


VOID = {"meta", "rect", "line", "polyline"}  # may close themselves: HTML's, or within an svg


def test_the_page_holds_everything_and_needs_nothing(store, fresh, tmp_path, stored_search, capsys):
    stored_search.store(f"sqlite:///{fresh}/studies.sqlite3", ONE)
    store.put(entry(ONE, **WON))
    store.put(entry(TWO, TORCH, date=""))
    text, root, out = page(fresh, tmp_path, capsys)
    shown = "".join(root.itertext())
    for word in out.split():
        assert word in {"searches", "-"} or word in shown
    assert not {"src", "href", "xlink:href", "onload"} & {
        name for element in root.iter() for name in element.attrib
    }
    assert "url(" not in text
    assert "http" not in text
    assert {element.tag for element in root.iter()} & {"script", "link", "img", "iframe"} == set()
    empty = {e.tag for e in root.iter() if len(e) == 0 and not e.text}
    assert empty <= VOID


def test_the_bars_are_to_scale(store, fresh, tmp_path, capsys):
    store.put(entry(ONE, ratio=2.0, ratio_low=1.5, ratio_high=2.5))
    store.put(entry(TWO, TORCH))
    _, root, _ = page(fresh, tmp_path, capsys)
    first, second = root.iter("svg")
    full = float(first.get("width"))
    assert float(first.find("rect").get("width")) == pytest.approx(full * 2.0 / 2.5, abs=0.1)
    assert float(second.find("rect").get("width")) == pytest.approx(full / 2.5, abs=0.1)
    assert [svg.find("rect").get("class") for svg in (first, second)] == ["win", "kept"]
    [torch] = [line for line in second.iter("line") if line.get("class") == "torch"]
    assert float(torch.get("x1")) == pytest.approx(full / 2.5, abs=0.1)


def test_the_curve_falls_to_the_best(fresh, tmp_path, stored_search, capsys):
    stored_search.store(f"sqlite:///{fresh}/studies.sqlite3", ONE)
    _, root, _ = page(fresh, tmp_path, capsys)
    [curve] = root.iter("polyline")
    corners = [tuple(map(float, corner.split(","))) for corner in curve.get("points").split()]
    # 30 us at trial 1 of 6, until trial 5 took 10 us; torch's 15 us lie between
    assert corners == [(50.0, 0.0), (250.0, 0.0), (250.0, 120.0), (300.0, 120.0)]
    [torch] = [line for line in root.iter("line") if line.get("class") == "torch"]
    assert float(torch.get("y1")) == 120.0 * 0.75
    assert "10.0 us" in [text.text for text in root.iter("text")]


HOSTILE = "</td><script>alert('1')</script>&amp;\"<!--"


def test_hostile_names_are_text(store, fresh, tmp_path, stored_search, capsys):
    """Of what a file can name, what a reader lets through arrives as it is, and is no markup."""
    key = entry(ONE).key
    vendor = replace(entry(TWO), key=replace(key, vendor=HOSTILE), gpu=HOSTILE, date=HOSTILE)
    store.put(replace(entry(ONE), gpu=HOSTILE))
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"schema": 1, "entries": [vendor.to_dict()]}))
    stored_search.store(f"sqlite:///{fresh}/studies.sqlite3", ONE, kind=HOSTILE)
    text, root, _ = page(fresh, tmp_path, capsys, "--file", str(file))
    assert "<script" not in text
    assert "<!--" not in text
    titles = [element.text for element in root.iter("h2")]
    assert f"{HOSTILE} ({H200.chip})" in titles
    assert any(title.startswith(f"{HOSTILE} ({HOSTILE}-sm90") for title in titles)
    assert any(HOSTILE in (cell.text or "") for cell in root.iter("td"))


def test_a_page_of_nothing_is_a_page(fresh, tmp_path, capsys):
    _, root, out = page(fresh, tmp_path, capsys)
    assert [element.text for element in root.iter("p")] == ["Nothing yet."]
    assert out.startswith("nothing tuned")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--file", "absent.json"], "--file must be a file or folder that exists"),
        (["--html", "/no/such/x.html"], "--html must be a file in a folder that exists"),
        (["--html", "."], "--html must be a file in a folder that exists"),
        (["--storage", "x.db"], "--storage must be a URL"),
        (["--storage", "sqlite:////no/such/x.db"], "storage must be one that exists"),
    ],
)
def test_bad_arguments(args, named, fresh, capsys):
    assert run(["report", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert err.count("\n") == 1


def test_without_studies_no_search_is_loaded(fresh):
    code = (
        "import sys; from autoswizzle.cli.app import run; run(['report']);"
        "sys.exit(len({'torch', 'triton', 'optuna', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_shipped_entries_can_be_reported(fresh, capsys):
    shipped = Path(import_module("autoswizzle.cache").__file__).parent / "shipped"
    report = reported(capsys, "--file", shipped)
    count = sum(len(gpu["problems"]) for gpu in report["gpus"])
    assert count == report["summary"]["problems"] > 0
    assert math.isfinite(report["summary"]["geomean"])
