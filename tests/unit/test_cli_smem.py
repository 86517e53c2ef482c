"""`autoswizzle smem` prints the source article's conflicts and traffic."""

import json

import pytest

from autoswizzle.cli.app import run
from autoswizzle.errors import UnavailableError
from autoswizzle.hardware import find_gpu
from autoswizzle.search.measure import Measurement
from autoswizzle.simulator.resources import Resources
from autoswizzle.smem_bench import LayoutRow, predicted_accesses


def printed(capsys, *args):
    assert run(["smem", *args, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def ways(rows):
    return {row["layout"]: row["ways"] for row in rows}


@pytest.mark.parametrize("instruction", ["ldmatrix.x1", "ldmatrix.x2", "ldmatrix.x4"])
def test_ldmatrix_conflicts(capsys, instruction):
    rows = printed(capsys, "--instruction", instruction)
    assert ways(rows) == {"none": 8, "32": 4, "64": 2, "128": 1, "padded": 1}


def test_the_store_of_c_is_four_way(capsys):
    rows = printed(capsys, "--instruction", "accumulator", "--cols", "128", "--itemsize", "4")
    assert ways(rows)["none"] == 4


def test_rows_read_along_themselves_have_no_conflict(capsys):
    rows = printed(capsys, "--instruction", "ld.shared.b128")
    assert set(ways(rows).values()) == {1}


def test_one_layout_is_drawn(capsys):
    assert run(["smem", "128"]) == 0
    lines = capsys.readouterr().out.splitlines()
    drawn = [line.partition("|")[2].split() for line in lines if line.lstrip()[:1].isdigit()]
    atoms = [list(map(int, row)) for row in drawn if row]
    assert atoms == [[row ^ atom for atom in range(8)] for row in range(8)]


def test_the_articles_traffic(capsys):
    moved = printed(
        capsys, "--traffic", "8192x8192x8192", "--block", "128x128x64", "--warps", "4x2"
    )
    assert moved["l2_read"] == 64 * 2 * 8192 * 8192 * 2
    assert round(moved["shared_read"] / 1e9, 2) == 51.81
    assert round(moved["shared_write"] / 1e9, 2) == 17.45
    assert round(moved["c_shared_write"] / 1e6) == 268


COUNTED = {"load_conflicts": 123456.0, "store_conflicts": 7.0, "ldmatrix": 5.0, "wait": 0.5}


@pytest.fixture
def layouts(monkeypatch):
    """An H200 on which every layout takes 10 us."""

    def bench_layouts(problem, configs, *, rep_ms, device, gpu):
        return [
            LayoutRow(
                config,
                predicted_accesses(config, problem),
                Resources(200, 65536, 8),
                Measurement(config, 10.0, 9.9, 10.1, "sustained"),
            )
            for config in configs
        ]

    monkeypatch.setattr("autoswizzle.cli.smem_bench.present_gpu", lambda device: find_gpu("H200"))
    monkeypatch.setattr("autoswizzle.cli.smem_bench.bench_layouts", bench_layouts)
    return monkeypatch


def test_bench_prints_ways_and_speed_and_says_why_nothing_is_counted(layouts, capsys):
    def missing(problem, configs):
        raise UnavailableError("counting bank conflicts needs ncu")

    layouts.setattr("autoswizzle.cli.smem_bench.count_conflicts", missing)
    assert run(["smem", "--bench"]) == 0
    out, err = capsys.readouterr()
    assert err == "no counters: counting bank conflicts needs ncu\n"
    operands = out.split("\n\n")[0].splitlines()
    assert "8192x8192x8192:bf16:nt on H200" in operands[0]
    cells = {line.split()[0]: line.split() for line in operands[2:]}
    assert {kind: row[6] for kind, row in cells.items()} == {
        "none": "8",
        "32": "4",
        "64": "2",
        "128": "1",
    }
    assert cells["128"][-1] == f"{2 * 8192**3 / 10 / 1e6:,.1f}"


def test_bench_prints_what_was_counted_beside_what_was_predicted(layouts, capsys):
    layouts.setattr(
        "autoswizzle.cli.smem_bench.count_conflicts",
        lambda problem, configs: [COUNTED] * len(configs),
    )
    assert run(["smem", "--bench", "--problem", "4096x4096x4096:fp16:nt"]) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("none ") and "123456" in line][
        :1
    ]
    assert line.split()[4:6] == ["123456", "352321536"]  # 7 x 50,331,648 conflicts of A and B
    assert line.rstrip().endswith("wait 0.50")
    assert run(["smem", "--bench", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["experiments"]) >= {"operands", "result"}


def test_bench_without_a_gpu_is_one_line(capsys, monkeypatch):
    def missing(device):
        raise UnavailableError(f"no CUDA device {device}: torch finds none")

    monkeypatch.setattr("autoswizzle.cli.smem_bench.present_gpu", missing)
    assert run(["smem", "--bench"]) == 1
    assert capsys.readouterr().err == "error: no CUDA device 0: torch finds none\n"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["swizzled"], "none, 32, 64, 128, padded"),
        (["--cols", "3"], "cols x itemsize must be a power of two"),
        (["--cols", "0"], "--cols must be an integer of at least 1"),
        (["--itemsize", "3"], "itemsize must be"),
        (["--itemsize", "4"], "--itemsize must be 2 for ldmatrix"),
        (["--instruction", "ld.shared.b8"], "--itemsize must be at most 1"),
        (["--instruction", "ldmatrix"], "--instruction must be one of"),
        (["--block", "128x128x64"], "--block must go with --traffic"),
        (["--warps", "4x2"], "--warps must go with --traffic"),
        (["--problem", "8x8x8"], "--problem must go with --bench"),
        (["--rep", "200"], "--rep must go with --bench"),
        (["--device", "0"], "--device must go with --bench"),
        (["--traffic", "8x8x8", "--plot", "x.png"], "--plot must go without --traffic"),
        (["--traffic", "8x8x8", "--cols", "64"], "--cols must go without --traffic"),
        (["--bench", "--traffic", "8x8x8"], "--traffic must go without --bench"),
        (["--bench", "--instruction", "ldmatrix.x4"], "--instruction must go without --bench"),
        (["64", "--bench"], "layout must go without --bench"),
        (["--traffic", "8x8x8", "--itemsize", "3"], "itemsize must be 1, 2, 4 or 8, got 3"),
        (["--cols", "8"], "--cols must be at least 16 for ldmatrix.x4, got 8"),
        (["--cols", "4", "--itemsize", "4", "--instruction", "accumulator"], "at least 8 for acc"),
        (["--cols", str(1 << 58)], "cols x itemsize must be at most 2147483648"),
        (["--traffic", "8x8"], "--traffic must be MxNxK"),
        (["--traffic", "0x8x8"], "m must be an integer of at least 1"),
        (["--traffic", "8x8x8", "--warps", "4"], "--warps must be DOWNxACROSS"),
        (["--traffic", "8x8x8", "--warps", "3x2"], "block_m must be a multiple"),
    ],
)
def test_bad_arguments(capsys, args, named):
    assert run(["smem", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
