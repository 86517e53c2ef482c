"""`autoswizzle demo` without a GPU does all of it: rank, compile, run, keep, explain."""

import re
from pathlib import Path

import pytest

from autoswizzle.cache.store import CacheStore
from autoswizzle.cli import demo
from autoswizzle.cli.app import run
from autoswizzle.errors import TuneError
from autoswizzle.space import tiles


def test_demo_without_a_gpu(fresh, capsys, monkeypatch):
    monkeypatch.setattr(demo, "_present", lambda: None)
    monkeypatch.setattr(demo, "candidates", tiles)  # a hundredth of the space, to rank it fast
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for named in ("H200", "registers", "shared KiB", "blocks/SM", "equals torch", "Next:", "tune"):
        assert named in out
    [stored] = CacheStore(fresh, shipped=False).entries()
    assert stored.entry.origin == "predicted"
    assert stored.entry.config.kernel == "pointer"
    assert "origin: wanted measured, found predicted" in out
    assert f"{demo.PROBLEM}: torch" in out
    document = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    shown = document.partition("$ autoswizzle demo\n")[2].partition("\n    ...\n")[0]
    steps = re.findall(r"^ +(\d\. .+)$", shown, re.MULTILINE)
    assert re.findall(r"^\d\. .+$", out, re.MULTILINE)[: len(steps)] == steps != []
    assert predicted(out) == predicted(shown) != {}


def predicted(text):
    """Configuration and time of each family's first row; the rest of it is the compiler's."""
    rows = re.findall(r"^ *((\w+) .+) +\d+ +[\d.]+ +\d+ +\d+ B$", text, re.MULTILINE)
    return {family: row.split() for row, family in reversed(rows)}


def test_a_child_that_fails_is_an_error_with_its_last_words():
    with pytest.raises(TuneError, match="must be one of"):
        demo._child("interpret", {"problem": "8x8x8:fp17", "config": {}})
