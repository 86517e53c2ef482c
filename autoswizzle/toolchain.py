"""Versions of the installed compiler, read from package metadata: nothing is imported."""

from functools import lru_cache
from importlib import metadata


@lru_cache(maxsize=1)
def triton_version() -> tuple[int, int] | None:
    """(major, minor) of the installed triton, None without one."""
    try:
        major, minor, *_ = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:
        return None
    return int(major), int(minor)
