"""`autoswizzle doctor`: what it finds wrong; no GPU."""

import json
from pathlib import Path

import pytest

from autoswizzle.cache.store import SHIPPED
from autoswizzle.cli.app import run

GOOD = next(SHIPPED.glob("*.json")).read_text()
BAD_ENTRY = json.dumps({"schema": 1, "entries": [{}]})


def found(capsys, name):
    code = run(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert code == any(check["state"] == "problem" for check in checks)
    return [check for check in checks if check["name"] == name]


@pytest.mark.parametrize(
    ("content", "state", "words"),
    [
        (GOOD, "ok", ""),
        (None, "problem", "no such file or folder"),
        ("# notes", "problem", "not JSON"),
        ("", "problem", "empty"),
        (BAD_ENTRY, "problem", "1 of 1 entries"),
    ],
    ids=["cache file", "absent", "text", "empty", "bad entry"],
)
def test_a_place_of_the_cache_path(fresh, tmp_path, monkeypatch, capsys, content, state, words):
    path = tmp_path / "place.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_PATH", f"{tmp_path}:{path}")
    folder, file = found(capsys, "cache path")
    assert (folder["state"], folder["detail"]) == ("ok", str(tmp_path))
    assert file["state"] == state
    assert words in file["detail"]


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_cache_folder_that_can_not_be_made(fresh, tmp_path, monkeypatch, capsys, folder):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_DIR", str(tmp_path / folder))
    [check] = found(capsys, "cache")
    assert check["state"] == "problem"
    assert check["detail"].startswith(f"{Path(tmp_path, folder)} can't be written")
