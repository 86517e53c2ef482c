"""`autoswizzle doctor`: what this machine offers and what stands in the way."""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from autoswizzle.cache.index import read_entries
from autoswizzle.cache.store import CacheStore
from autoswizzle.calibration import calibrated
from autoswizzle.cli.failures import FAILED
from autoswizzle.cli.options import Json
from autoswizzle.errors import AutoswizzleError
from autoswizzle.hardware import MIB, detect
from autoswizzle.report.tables import print_json, table
from autoswizzle.settings import settings
from autoswizzle.toolchain import triton_version


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. state: ok, note (fine, but limits what can be done) or problem."""

    name: str
    state: str
    detail: str


def doctor(as_json: Json = False) -> None:
    """Show what this machine offers.

    GPU, driver, torch, triton, cache and settings; exit 1 if something must be repaired.
    """
    checks = list(_checks())
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print(table(("check", "state", "detail"), [tuple(asdict(c).values()) for c in checks]))
    if any(check.state == "problem" for check in checks):
        raise typer.Exit(FAILED)


def _checks() -> Iterator[Check]:
    version = metadata.version("autoswizzle")
    python = platform.python_version()
    yield Check("autoswizzle", "ok", f"{version}, Python {python}, {platform.platform()}")
    yield _driver()
    yield from _gpus()
    yield _triton()
    yield _cache_folder(settings().cache_dir)
    yield from _search_path()
    yield _entries()
    yield _settings()


def _driver() -> Check:
    if shutil.which("nvidia-smi") is None:
        return Check("driver", "note", "no NVIDIA driver: nvidia-smi is not on the PATH")
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return Check("driver", "problem", "nvidia-smi does not answer within 20 s")
    answer = (done.stdout or done.stderr).strip().splitlines()
    if done.returncode or not answer:
        return Check("driver", "problem", f"nvidia-smi fails: {answer[0] if answer else 'silent'}")
    return Check("driver", "ok", answer[0])


def _gpus() -> Iterator[Check]:
    import torch

    build = f"torch {torch.__version__}, " + (
        f"CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    )
    yield Check("torch", "ok" if torch.version.cuda else "note", build)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
        yield Check("GPU", "note", f"no CUDA device{why}: tune and bench need one")
    for device in range(count):
        try:
            gpu = calibrated(detect(device))
        except AutoswizzleError as error:
            yield Check(f"GPU {device}", "problem", str(error))
            continue
        capability = f"{gpu.capability // 10}.{gpu.capability % 10}"
        l2 = f"{gpu.l2_bytes / MIB:g} MiB of L2 ({gpu.l2_effective_bytes / MIB:g} effective)"
        yield Check(
            f"GPU {device}",
            "ok",
            f"{gpu.name}, compute capability {capability}, {gpu.num_sms} SMs, {l2}; {gpu.source}",
        )


def _triton() -> Check:
    if triton_version() is None:
        return Check("triton", "problem", "not installed: every product runs as torch.matmul")
    return Check("triton", "ok", metadata.version("triton"))


def _cache_folder(folder: Path) -> Check:
    """Try what a writer does: make the folder and a file in it; leave neither behind."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Check("cache", "problem", f"{folder} can't be written: {error.strerror}")
    return Check("cache", "ok", f"{folder}" + ("" if existing == folder else " (not made yet)"))


def _search_path() -> Iterator[Check]:
    for path in settings().cache_path:
        problem = _why_unread(path)
        state, detail = ("problem", f": {problem}") if problem else ("ok", "")
        yield Check("cache path", state, f"{path}{detail}")


def _why_unread(path: Path) -> str:
    """What keeps a place of AUTOSWIZZLE_CACHE_PATH, or a part of it, from being read."""
    if path.is_dir():
        return ""  # a folder may hold other files; what is passed over is logged
    return read_entries(path)[1] if path.exists() else "no such file or folder"


def _entries() -> Check:
    now = settings()
    places = [stored.place for stored in CacheStore(now.cache_dir, now.cache_path).entries()]
    counts = [f"{places.count(place)} {place}" for place in ("user", "read-only", "shipped")]
    return Check("entries", "ok", ", ".join(counts))


def _settings() -> Check:
    now = settings()
    disabled = ", disabled: every product runs as torch.matmul" if now.disabled else ""
    state = "note" if now.disabled else "ok"
    return Check("settings", state, f"on miss: {now.on_miss}, log: {now.log_level}{disabled}")
