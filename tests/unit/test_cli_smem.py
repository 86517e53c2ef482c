"""`autoswizzle smem` prints the source article's conflicts and traffic."""

import json

import pytest

from autoswizzle.cli.app import run


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
        (["--block", "128x128x64"], "must go with --traffic"),
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
