"""Reading and writing cache files: bounded reads, atomic writes, nothing ever half-written."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from autoswizzle.cache.entry import parse_json
from autoswizzle.errors import ArgumentError, CacheError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 8 * 1024**2  # of one file; an entry takes about 1.5 kB, so some 5,000 entries


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path that a caller names; raises ArgumentError for what can't name a file or folder."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise ArgumentError(f"path must name a file or folder, got {path!r:.80}")
    return Path(name)


def read_json(path: Path) -> object:
    """The JSON value in path; raises CacheError with the reason it can't be used.

    Never blocks on a pipe or device, and reads at most MAX_BYTES.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise CacheError("not a regular file")
            if facts.st_size > MAX_BYTES:
                raise CacheError(f"{facts.st_size} bytes, more than the {MAX_BYTES} read")
            content = file.read(MAX_BYTES)
    except OSError as error:
        raise CacheError(reason(error)) from error
    try:
        return parse_json(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise CacheError("not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise CacheError(f"not JSON: {error}" if content else "empty") from None


def write_atomic(path: Path, text: str) -> None:
    """Replace path's content in one step; a symbolic link and the file mode stay.

    Raises CacheError naming the path; then the old content is intact.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if target.exists() and not target.is_file():
            raise CacheError(f"cannot write {path}: not a regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open_new(temporary) as file:
                with suppress(FileNotFoundError):
                    temporary.chmod(stat.S_IMODE(target.stat().st_mode))
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CacheError(f"cannot write {path}: {reason(error)}") from error


def keep_aside(path: Path) -> Path:
    """Copy path's bytes beside it, under a name no reader takes for an entry."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.damaged")
    try:
        shutil.copyfile(path, aside)
    except (OSError, shutil.SpecialFileError) as error:
        raise CacheError(f"cannot keep {path} aside: {error}") from error
    return aside


def check_writable(folder: Path) -> None:
    """Create folder if need be and write in it; raises CacheError naming it."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        open_new(probe).close()
        probe.unlink()
    except OSError as error:
        raise CacheError(f"cannot write in {folder}: {reason(error)}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other writers where the system can; dies with the process."""
    descriptor = None
    with suppress(OSError):  # a file system without locks: the last writer wins
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_new(path: Path) -> BinaryIO:
    """A binary file that did not exist, with the mode the user's umask gives."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def reason(error: OSError) -> str:
    """The system's words for error, without its path."""
    return error.strerror or type(error).__name__
