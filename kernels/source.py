"""The identity of a kernel family's source, for the cache's key."""

import ast
import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from autoswizzle.errors import ConfigError
from autoswizzle.kernels.family import MODULES

_PREFIX = "autoswizzle.kernels."
_PLUMBING = ("family", "compiler", "launch")  # how kernels are called, not what they compute
_UNSTABLE_FIELDS = (
    "ctx",
    "kind",
    "type_comment",
    "type_params",
)  # by Python version
# A collection amid CPython 3.11's parser may let another thread in; with two in it, it raises
# SystemError (AST constructor recursion depth mismatch).
_PARSING = Lock()


@cache
def source_hash(kernel: str) -> str:
    """Hex digest of a family's source: of its module and the device helpers it imports.

    Taken from the syntax tree, so that formatting, comments and docstrings don't count; equal under
    every Python version. Reads files, imports nothing. Raises ConfigError for an unknown family.
    """
    if kernel not in MODULES:
        raise ConfigError(f"kernel must be one of {', '.join(MODULES)}, got {kernel!r}")
    digest = hashlib.sha256()
    for module, tree in sorted(_sources(MODULES[kernel]).items()):
        digest.update(repr((module, normalised(tree))).encode())
    return digest.hexdigest()


def current_source(kernel: str) -> str | None:
    """The source hash an entry of this kernel must have: "" for torch, None for no such family."""
    if kernel == "torch":
        return ""
    return source_hash(kernel) if kernel in MODULES else None


def normalised(tree: ast.AST) -> Any:  # noqa: ANN401  # nested tuples of text
    """The tree as nested tuples, without positions, docstrings and fields that are empty."""
    found: list[Any] = [type(tree).__name__]
    for name, value in ast.iter_fields(tree):
        if name in _UNSTABLE_FIELDS or value is None or value == []:
            continue
        if name == "body" and isinstance(value, list):
            value = [item for item in value if not _is_text(item)]
        if isinstance(value, list):
            found.append((name, *map(_plain, value)))
        else:
            found.append((name, _plain(value)))
    return tuple(found)


def _plain(value: object) -> Any:  # noqa: ANN401
    return normalised(value) if isinstance(value, ast.AST) else repr(value)


def _is_text(statement: object) -> bool:
    """Whether a statement is a bare string: a docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _sources(module: str) -> dict[str, ast.Module]:
    """The module and every module of this package that it imports, parsed."""
    found: dict[str, ast.Module] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.removeprefix(_PREFIX) in _PLUMBING:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"kernel must have a module, got none at {name}")
        with _PARSING:
            found[name] = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(found[name]) if isinstance(node, ast.ImportFrom)]
        modules = [node.module or "" for node in imports]
        waiting += [module for module in modules if module.startswith(_PREFIX)]
    return found
