"""Every environment variable autoswizzle reads, each read once per process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import platformdirs

from autoswizzle.errors import SettingsError

ON_MISS = ("nearest", "torch", "model", "tune", "error")
LOG_LEVELS = ("debug", "info", "warning", "error")
FLAGS = {"": False, "0": False, "1": True}


@dataclass(frozen=True, slots=True)
class Settings:
    """The process-wide settings.

    cache_dir: the user's cache folder (AUTOSWIZZLE_CACHE_DIR; default: the platform's).
    cache_path: read-only files or folders searched before it (AUTOSWIZZLE_CACHE_PATH).
    on_miss: what an untuned problem does (AUTOSWIZZLE_ON_MISS; default nearest).
    disabled: always use torch (AUTOSWIZZLE_DISABLE=1).
    log_level: least level of the "autoswizzle" logger (AUTOSWIZZLE_LOG; default warning).
    """

    cache_dir: Path
    cache_path: tuple[Path, ...] = ()
    on_miss: str = "nearest"
    disabled: bool = False
    log_level: str = "warning"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """Settings as env spells them; raises SettingsError naming the variable."""
        folder = env.get("AUTOSWIZZLE_CACHE_DIR")
        paths = env.get("AUTOSWIZZLE_CACHE_PATH", "").split(os.pathsep)
        disable = env.get("AUTOSWIZZLE_DISABLE", "")
        if disable not in FLAGS:
            raise SettingsError(f"AUTOSWIZZLE_DISABLE must be 0 or 1, got {disable!r}")
        return cls(
            cache_dir=_place(folder) if folder else platformdirs.user_cache_path("autoswizzle"),
            cache_path=tuple(_place(path) for path in paths if path),
            on_miss=_choice(env, "AUTOSWIZZLE_ON_MISS", ON_MISS, "nearest"),
            disabled=FLAGS[disable],
            log_level=_choice(env, "AUTOSWIZZLE_LOG", LOG_LEVELS, "warning"),
        )


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read from the environment at the first call."""
    return Settings.from_env(os.environ)


def _place(path: str) -> Path:
    """The path as it stands now: the program may change its folder."""
    try:
        return Path(path).absolute()
    except OSError:  # the present folder is gone
        return Path(path)


def _choice(env: Mapping[str, str], name: str, legal: tuple[str, ...], default: str) -> str:
    value = env.get(name) or default
    if value not in legal:
        raise SettingsError(f"{name} must be one of {', '.join(legal)}, got {value!r}")
    return value
