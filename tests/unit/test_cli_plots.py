"""--plot FILE of every command that has it."""

import pytest

from autoswizzle.cli.app import run
from autoswizzle.config import SWIZZLES, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.problem import GemmProblem
from autoswizzle.report import plots
from autoswizzle.simulator import ranking

pytest.importorskip("matplotlib")
PROBLEM = "2048x1536x512:fp16:nt"
SIMULATE = ("simulate", PROBLEM, "--gpu", "H200")


@pytest.fixture
def drawn(monkeypatch):
    """What the figures say: texts of every one that is made, once it is saved."""
    figures, make = [], plots._figure

    def keep(*size):
        figures.append(make(*size))
        return figures[-1]

    monkeypatch.setattr(plots, "_figure", keep)
    return figures


def test_simulate_draws_every_order_over_its_group_size(drawn, tmp_path, capsys):
    path = tmp_path / "traffic.svg"
    assert run([*SIMULATE, "--plot", str(path)]) == 0
    assert "<svg" in path.read_text()
    traffic, time = drawn[0].axes
    lines = {line.get_label(): line for line in traffic.get_lines() if len(line.get_xdata()) > 2}
    assert set(lines) == {"grouped", "grouped_n", "serpentine"}
    assert {line.get_label() for line in traffic.get_lines()} == set(SWIZZLES)
    problem, gpu = GemmProblem.parse(PROBLEM), find_gpu("H200")
    config = GemmConfig(swizzle="grouped", group_size=4)
    expected = ranking.predict(problem, config, gpu)
    place = list(lines["grouped"].get_xdata()).index(4)
    moved = expected.dram_read_bytes + expected.dram_write_bytes
    assert lines["grouped"].get_ydata()[place] == pytest.approx(moved / 1e9)
    assert len(time.get_lines()) == len(SWIZZLES)
    assert "configuration" in capsys.readouterr().out


def test_rank_draws_the_terms_of_the_best(drawn, tmp_path, monkeypatch):
    configs = [GemmConfig(block_m=m, num_warps=4) for m in (32, 64, 128)]
    monkeypatch.setattr(ranking, "candidates", lambda problem, gpu: iter(configs))
    path = tmp_path / "terms.png"
    assert run(["rank", PROBLEM, "--gpu", "H200", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = drawn[0].axes[0]
    assert len(axes.get_yticklabels()) == 3
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named[:3] == ["arithmetic", "dram", "l2"]
    assert "hidden" not in named


def test_smem_draws_the_ways_as_numbers(drawn, tmp_path):
    path = tmp_path / "conflicts.pdf"
    assert run(["smem", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"%PDF")
    axes = drawn[0].axes[0]
    layouts = [label.get_text() for label in axes.get_yticklabels()]
    words = [label.get_text() for label in axes.get_xticklabels()]
    texts = [text.get_text() for text in axes.texts]
    place = words.index("ldmatrix.x4")
    ways = {name: texts[row * len(words) + place] for row, name in enumerate(layouts)}
    assert ways == {"none": "8", "32": "4", "64": "2", "128": "1", "padded": "1"}
    assert "-" in texts  # ld.shared.b8 can't read elements of 2 bytes


@pytest.mark.parametrize("command", [SIMULATE, ("smem",), ("rank", PROBLEM, "--gpu", "H200")])
def test_a_plot_that_can_not_be_written_is_named(command, capsys):
    assert run([*command, "--plot", "/no/such/x.png"]) == 2
    assert "--plot must be a file in a folder" in capsys.readouterr().err
