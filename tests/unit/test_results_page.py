"""The tables of docs/results.md are those of the files that it names."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest

from autoswizzle.config import GemmConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/results.md").read_text()
SUITES = ["bf16-nt", "bf16-nn", "bf16-tn", "fp16-nt", "fp16-nn", "fp16-tn"]
TABLES = [
    ("| problems with", "## Large problems, own kernels against torch.matmul"),
    ("problem |", "## Large problems, own kernels against torch.matmul"),
    ("problem |", "### Beside quack"),
    ("problem |", "### Narrow problems"),
    ("problem |", "## What the tile order is worth"),
    ("case |", "## A model"),
    ("call |", "## Host time of a call"),
]
NARROW = ["tune-wall-0of3", "tune-wall-1of3", "tune-wall-2of3", "suite-bf16-nt-some"]


def results(name):
    return json.loads((ROOT / f"benchmarks/results/h200/{name}.json").read_text())


def table(head, title):
    """The rows of the first table under title whose head begins so, as lists of cells."""
    section = PAGE[PAGE.index(f"{title}\n") :]
    lines = section[section.index(f"\n| {head}") + 1 :].split("\n\n")[0].splitlines()
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def lines(rows):
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def size(row):
    return row["problem"].split(":")[0]


def named(config):
    """As the page names a configuration: what a launch is, without warps and stages."""
    config = GemmConfig.from_dict(config)
    words = [config.kernel, config.tile]
    words += [] if config.kernel == "gemv" else [config.order]
    words += [f"split_k {config.split_k}"] if config.split_k > 1 else []
    words += [name for name in ("stream_k", "swap_ab") if getattr(config, name)]
    words += [] if config.warp_specialize == "none" else [config.warp_specialize]
    return " ".join(words)


@pytest.fixture(scope="module")
def large():
    return [{size(row): row for row in results(f"suite-{suite}-large")["rows"]} for suite in SUITES]


def test_large_problems(large):
    shown = table("problem |", "## Large problems, own kernels against torch.matmul")
    assert {name for name, *_ in shown} == {name for rows in large for name in rows}
    for name, *cells, config in shown:
        found = [rows.get(name) for rows in large]
        ratios = [row and f"{row['ratio']:.3f}, {row['own']['ratio']:.3f}" for row in found]
        assert cells == [text or "-" for text in ratios], name
        assert config == ("-" if found[0] is None else named(found[0]["config"])), name


def test_geomeans_of_large_problems(large):
    def geomean(ratios):
        return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}"

    shown = table("| problems with", "## Large problems, own kernels against torch.matmul")
    assert [name for name, *_ in shown] == [suite.replace("-", " ") for suite in SUITES]
    for (_, _, *cells), rows in zip(shown, large, strict=True):
        ratios = {name: row["ratio"] for name, row in rows.items()}
        addressed = [ratio for name, ratio in ratios.items() if name != "4095x4097x4099"]
        slower, own = sum(x < 0.97 for x in addressed), [x["own"]["ratio"] for x in rows.values()]
        means = geomean(ratios.values()), geomean(addressed), str(slower), geomean(own)
        assert cells == [str(len(rows)), *means]
    said = re.search(r"`since` \((\d+) of (\d+)\)", PAGE)
    everything = [row for rows in large for row in rows.values()]
    assert said.groups() == (str(sum("since" in row for row in everything)), str(len(everything)))


def test_narrow_problems():
    rows = [row for name in NARROW for row in results(name)["rows"]]
    known = {
        (
            size(row),
            f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})",
            named(row["config"]),
        )
        for row in rows
    }
    shown = table("problem |", "### Narrow problems")
    assert [cells for cells in shown if tuple(cells) not in known] == []
    large = {size(row) for row in results("suite-bf16-nt-large")["rows"]}
    assert {name for name, *_ in shown} == {size(row) for row in rows} - large


def test_orders():
    found = [
        [
            item["problem"], item["best"], f"{item['over_row']:.2f}x",
            f"{item['over_column']:.2f}x", f"{item['spearman']:.2f}",
        ]
        for item in results("order_sweep")["problems"]
    ]  # fmt: skip
    assert table("problem |", "## What the tile order is worth") == found


def test_a_model():
    found = [
        [
            row["case"], row["mode"], f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            f"{row['plain_us'] / 1000:.2f}", f"{row['gemm_share']:.2f}",
            f"{row['own_kernels']} of {row['problems']}",
        ]
        for row in results("model")["rows"]
    ]  # fmt: skip
    assert table("case |", "## A model") == found


def test_host_time():
    found = [
        [
            row["name"], f"{row['us']:.2f}", f"{row['ratio']:.3f}", row["base"],
            "-" if row["bound"] is None else f"{row['bound']:.2f}",
        ]
        for row in results("host-overhead")["rows"]
    ]  # fmt: skip
    assert table("call |", "## Host time of a call") == found


def test_what_power_costs():
    found = []
    for row in results("power")["rows"]:
        config = GemmConfig.from_dict(row["config"])
        ways = ["stream_k"] * config.stream_k + ["swap_ab"] * config.swap_ab
        tile = [config.kernel, f"{config.block_m}x{config.block_n}", *ways, config.warp_specialize]
        ratios = [f"{row[name][0]:.3f}" for name in ("one_clock", "own", "energy")]
        clocks = f"{round(row['sm_mhz'])}, {round(row['torch_sm_mhz'])}"
        found.append([size(row), " ".join(tile), *ratios, clocks])
    assert table("problem |", "### What power costs") == found


@pytest.fixture
def run(load, monkeypatch):
    """Runs benchmarks/results_page.py on that page and folder of results, else on the real ones."""

    def ran(*arguments, **places):
        module = load("results_page")
        for name, place in places.items():
            monkeypatch.setattr(module, name, place)
        monkeypatch.setattr(sys, "argv", ["results_page.py", *arguments])
        module.main()

    return ran


def test_the_program_finds_the_page_up_to_date(run, capsys):
    with pytest.raises(SystemExit) as ended:
        run("--check")
    assert (ended.value.code, capsys.readouterr().out) == (0, "")


def test_the_program_replaces_what_the_files_change(run, capsys, tmp_path):
    files, page = tmp_path / "h200", tmp_path / "results.md"
    shutil.copytree(ROOT / "benchmarks/results/h200", files)
    page.write_text(PAGE)
    raced = {"problem": "1x2x3:bf16:nt", "over_quack": [1.25, 1.2, 1.3], "over_torch": [0.5] * 3}
    (files / "quack.json").write_text(json.dumps({"rows": [raced]}))
    later = results("suite-bf16-nt-some")
    config = {"kernel": "wgmma", "block_k": 64, "split_k": 2, "swap_ab": True}
    later["rows"][0] |= {"ratio": 9.5, "ratio_low": 9.25, "ratio_high": 9.75, "config": config}
    (files / "suite-bf16-nt-some.json").write_text(json.dumps(later))

    quack, narrow = (
        table("problem |", f"### {name}") for name in ("Beside quack", "Narrow problems")
    )
    name = size(later["rows"][0])
    fastest = [name, "9.500 (9.250 to 9.750)", "wgmma 128x128x64 grouped8 split_k 2 swap_ab"]
    others = [cells for cells in narrow if cells[0] != name]
    assert len(others) == len(narrow) - 1
    expected = PAGE.replace(lines(quack), "| 1x2x3 | 1.250 | 0.500 |\n")
    expected = expected.replace(lines(narrow), lines([fastest, *others]))
    tables = ["Beside quack (problem |)", "Narrow problems (problem |)"]

    with pytest.raises(SystemExit) as ended:
        run("--check", PAGE=page, FILES=files)
    assert (ended.value.code, page.read_text()) == (1, PAGE)
    assert capsys.readouterr().out.splitlines() == [f"{name} differs" for name in tables]
    run(PAGE=page, FILES=files)
    assert page.read_text() == expected
    assert capsys.readouterr().out.splitlines() == [f"{name} updated" for name in tables]


def test_a_suite_to_be_measured_again_has_no_means(run, tmp_path):
    files, page = tmp_path / "h200", tmp_path / "results.md"
    shutil.copytree(ROOT / "benchmarks/results/h200", files)
    page.write_text(PAGE)
    kept = [row for row in results("suite-fp16-nn-large")["rows"] if size(row) == "4095x4097x4099"]
    for layout, rows in (("nn", kept), ("tn", [])):
        (files / f"suite-fp16-{layout}-large.json").write_text(json.dumps({"rows": rows}))
    run(PAGE=page, FILES=files)
    [row] = kept
    mean, own = f"{row['ratio']:.3f}", f"{row['own']['ratio']:.3f}"
    lines = page.read_text().splitlines()
    assert f"| fp16 nn | 38 | 1 | {mean} | - | 0 | {own} |" in lines
    assert "| fp16 tn | 40 | 0 | - | - | 0 | - |" in lines


def test_the_program_makes_every_row_anew(run, tmp_path):
    page, emptied = tmp_path / "results.md", re.sub(r"(`since` \()\d+ of \d+", r"\g<1>0 of 0", PAGE)
    for head, title in TABLES:
        emptied = emptied.replace(lines(table(head, title)), "")
    page.write_text(emptied)
    run(PAGE=page)
    assert page.read_text() == PAGE
