"""What the compiler may do to a candidate, as this package's errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from autoswizzle.errors import CompileError, LaunchError

# What triton says of a ptxas that SIGKILL (of a system short of memory) or SIGTERM ended
_KILLED = re.compile(r"`ptxas` failed with error code -(9|15)$", re.MULTILINE)


@contextmanager
def compile_errors() -> Iterator[None]:
    """Raise CompileError with a one-line reason for whatever triton's compiler raises.

    Besides its own errors these are what its C++ passes and layout checks surface as: RuntimeError
    (PassManager::run failed), ValueError, TypeError, IndexError (map::at) and AssertionError.
    LaunchError of kind Killed where another process ended ptxas: the next attempt may succeed.
    """
    from triton.errors import TritonError

    try:
        yield
    except (
        TritonError,
        RuntimeError,
        ValueError,
        TypeError,
        IndexError,
        AssertionError,
    ) as error:
        if killed := _KILLED.search(str(error)):
            raise LaunchError(killed[0], "Killed") from error
        raise CompileError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    """The line that says why; the compiler's messages begin with source excerpts, and those of a
    failed ptxas with what became of it.
    """
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    ptxas = [line for line in lines if line.startswith("ptxas") and "error" in line]
    ptxas += [line for line in lines if line.startswith("PTXAS error: ")]  # it said nothing
    return f"{type(root).__name__}: {(ptxas or lines[-1:] or ['no message'])[0]}"
