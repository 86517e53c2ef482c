"""Every error autoswizzle raises on purpose.

AutoswizzleError
├── ArgumentError (ValueError)        the caller gave something illegal: "X must ..., got Y"
│   ├── ProblemError                  a GEMM problem or its text form
│   ├── ConfigError                   a kernel configuration
│   ├── HardwareError                 a GPU name or fact
│   └── SettingsError                 an environment variable
├── UnavailableError (RuntimeError)   this machine lacks a GPU, a driver or triton
├── CandidateError (RuntimeError)     one configuration can't be used here
│   ├── CompileError                  the compiler rejects it
│   ├── LaunchError                   the launch or the run fails
│   └── WrongResultError              it computes something else than the product
├── TuneError (RuntimeError)          a search ended without a usable result
└── CacheError (RuntimeError)         a cache location or file can't be used
    └── SchemaError                   it is of a newer format version
"""

from collections.abc import Collection


class AutoswizzleError(Exception):
    """Base of every deliberate error of this package."""


class ArgumentError(AutoswizzleError, ValueError):
    """The caller gave an illegal value; the message says which one is legal."""


class ProblemError(ArgumentError):
    """A GEMM problem, or its text form, is illegal."""


class ConfigError(ArgumentError):
    """A kernel configuration is illegal for its problem or GPU."""


class HardwareError(ArgumentError):
    """A GPU name is unknown, or a GPU fact is illegal."""


class SettingsError(ArgumentError):
    """An environment variable holds an illegal value."""


def check_choice(
    name: str,
    value: object,
    legal: Collection[str],
    error: type[ArgumentError] = ArgumentError,
    *,
    optional: bool = False,
) -> None:
    """Raise error unless value is one of the legal words or, if optional, None."""
    if (value is None and optional) or (isinstance(value, str) and value in legal):
        return
    words = ", ".join(legal) + (" or None" if optional else "")
    shown = " ".join(repr(value).split())
    raise error(f"{name} must be one of {words}, got {shown:.1000}")


def check_flag(name: str, value: object) -> None:
    """Raise ArgumentError unless value is True or False, as "no" would count as True."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False, got {value!r:.80}")


def check_printable(name: str, value: object, error: type[AutoswizzleError]) -> None:
    """Raise error unless value is a text without newlines and escape codes."""
    if not (isinstance(value, str) and value.isprintable()):
        raise error(f"{name} must be a printable text, got {value!r:.80}")


def printable(value: object) -> str:
    """The value as text that prints on one line: newlines and control characters as escapes."""
    text = str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class UnavailableError(AutoswizzleError, RuntimeError):
    """The machine lacks a GPU, a driver or a package that the call needs."""


class CandidateError(AutoswizzleError, RuntimeError):
    """One configuration can't be used; the search records it and goes on.

    kind: the class of failure that reports count by, the exception's own name by default.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or type(self).__name__


class CompileError(CandidateError):
    """The compiler rejects a configuration."""


class LaunchError(CandidateError):
    """A configuration compiled, but its launch or run failed."""


class WrongResultError(CandidateError):
    """A configuration ran, but did not compute the product."""


class TuneError(AutoswizzleError, RuntimeError):
    """A search ended without a usable result."""


class CacheError(AutoswizzleError, RuntimeError):
    """A cache location or file can't be used for what was asked."""


class SchemaError(CacheError):
    """A cache entry is of a newer format version, so it must not be overwritten."""
