"""`autoswizzle order` prints the published grids."""

import json

import pytest

from autoswizzle.cli.app import run

# The first rows of the 8x8 tables of the source article.
PUBLISHED = {
    "row": ["0 1 2 3 4 5 6 7", "8 9 10 11 12 13 14 15"],
    "column": ["0 8 16 24 32 40 48 56", "1 9 17 25 33 41 49 57"],
    "grouped": ["0 4 8 12 16 20 24 28", "1 5 9 13 17 21 25 29"],
    "morton": ["0 2 8 10 32 34 40 42", "1 3 9 11 33 35 41 43"],
    "xor": ["0 9 18 27 36 45 54 63", "1 8 19 26 37 44 55 62"],
}


@pytest.mark.parametrize("order", PUBLISHED)
def test_published_grids(capsys, order):
    group = ["--group-size", "4"] if order == "grouped" else []
    assert run(["order", order, "8", "8", *group]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 8
    assert lines[:2] == PUBLISHED[order]
    if order == "grouped":
        assert lines[4] == "32 36 40 44 48 52 56 60"


def test_cells_are_aligned(capsys):
    run(["order", "row", "2", "6"])
    assert capsys.readouterr().out == " 0  1  2  3  4  5\n 6  7  8  9 10 11\n"


def test_json_holds_the_grid_alone(capsys):
    assert run(["order", "grouped", "3", "2", "--group-size", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    data = json.loads(out)
    assert data["ids"] == [[0, 2], [1, 3], [4, 5]]
    assert (data["order"], data["group_size"]) == ("grouped", 2)


def test_plot_writes_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "order.png"
    assert run(["order", "hilbert", "16", "12", "--plot", str(path), "--wave", "20"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_names_the_extra(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    path = tmp_path / "order.png"
    assert run(["order", "row", "2", "2", "--plot", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "autoswizzle[plot]" in err
    assert not path.exists()
