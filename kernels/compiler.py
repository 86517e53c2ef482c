"""What the compiler may do to a candidate, as this package's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from autoswizzle.errors import CompileError


@contextmanager
def compile_errors() -> Iterator[None]:
    """Raise CompileError with a one-line reason for whatever triton's compiler raises.

    Besides its own errors these are what its C++ passes and layout checks surface as: RuntimeError
    (PassManager::run failed), ValueError, TypeError, IndexError (map::at) and AssertionError.
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
        raise CompileError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    """The last line that says something; the compiler's messages begin with source excerpts."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    ptxas = [line for line in lines if line.startswith("ptxas") and "error" in line]
    return f"{type(root).__name__}: {(ptxas or lines[-1:] or ['no message'])[0]}"
