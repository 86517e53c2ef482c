import os
from pathlib import Path

import pytest

from autoswizzle.errors import SettingsError
from autoswizzle.settings import Settings


def test_defaults() -> None:
    found = Settings.from_env({})
    assert (found.on_miss, found.disabled, found.log_level) == ("nearest", False, "warning")
    assert found.cache_path == ()
    assert found.cache_dir.name == "autoswizzle"


def test_every_variable() -> None:
    env = {
        "AUTOSWIZZLE_CACHE_DIR": "/one",
        "AUTOSWIZZLE_CACHE_PATH": os.pathsep.join(["/two", "", "/three.json"]),
        "AUTOSWIZZLE_ON_MISS": "error",
        "AUTOSWIZZLE_DISABLE": "1",
        "AUTOSWIZZLE_LOG": "debug",
    }
    expected = Settings(Path("/one"), (Path("/two"), Path("/three.json")), "error", True, "debug")
    assert Settings.from_env(env) == expected


def test_a_relative_place_stays_where_it_was(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Settings.from_env(
        {"AUTOSWIZZLE_CACHE_DIR": "one", "AUTOSWIZZLE_CACHE_PATH": "two.json"}
    )
    assert (found.cache_dir, found.cache_path) == (tmp_path / "one", (tmp_path / "two.json",))


def test_a_relative_place_in_a_folder_that_is_gone(monkeypatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert Settings.from_env({"AUTOSWIZZLE_CACHE_DIR": "one"}).cache_dir == Path("one")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("AUTOSWIZZLE_ON_MISS", "guess", "nearest, torch, model, tune, error"),
        ("AUTOSWIZZLE_DISABLE", "yes", "0 or 1"),
        ("AUTOSWIZZLE_LOG", "loud", "debug, info, warning, error"),
    ],
)
def test_illegal_value_lists_the_legal(name: str, value: str, legal: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be .*{legal}.*got '{value}'"):
        Settings.from_env({name: value})
