"""`autoswizzle record`: run a Python program and count the products it multiplies."""

import importlib.util
import io
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from autoswizzle.cache.files import as_path
from autoswizzle.cli.failures import FAILED, complain, note
from autoswizzle.cli.options import parsed
from autoswizzle.errors import ArgumentError
from autoswizzle.records import check_replaceable


def record(
    program: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The program's own.", show_default=False),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT names a module, as in python -m.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            "--out", parser=parsed(as_path), metavar="FILE", help="Replaced when SCRIPT ends."
        ),
    ] = Path("shapes.jsonl"),
) -> None:
    """Count the products of a program.

    Runs SCRIPT as python would and keeps which problems it multiplied, for tune --from-record. Its
    exit code is the program's. Options must come before SCRIPT.
    """
    check_replaceable(out, "--out")
    run = _module(program) if module else _script(program)
    path = out.absolute()  # the program may change the folder
    from autoswizzle.recording import record_shapes

    sys.argv = [program, *(arguments or [])]
    with record_shapes(path) as counts:
        end = _end_of(run)
    if counts:
        note(f"{out}: products seen: {counts.total()}, distinct problems: {len(counts)}")
        note(f"next: autoswizzle tune --from-record {shlex.quote(str(out))}")
    else:
        note(
            f"{out}: empty, the program multiplied nothing in fp16, bf16 or fp32 in its main "
            "thread (elsewhere: autoswizzle.record_shapes in the code that multiplies)"
        )
    if end is not None:
        raise end


def _script(name: str) -> Callable[[], object]:
    """What runs a file as the main module."""
    path = Path(name)
    if not path.is_file():
        raise ArgumentError(f"SCRIPT must be a Python file that exists, got {name!r}")
    _search_first(path.resolve().parent)
    return lambda: _run_file(path.absolute())


def _run_file(path: Path) -> None:
    main = ModuleType("__main__")  # runpy's would be gone before threads that outlive its last line
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    with io.open_code(main.__file__) as file:
        exec(compile(file.read(), main.__file__, "exec", dont_inherit=True), vars(main))


def _module(name: str) -> Callable[[], object]:
    """What runs a module or package as the main module."""
    _search_first(Path.cwd())
    top = name.partition(".")[0]  # to find more of it would import this
    if not top or top == "__main__" or importlib.util.find_spec(top) is None:
        raise ArgumentError(f"with -m, SCRIPT must be a module that can be found, got {name!r}")
    return lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)


def _search_first(folder: Path) -> None:
    """Give modules in folder the first place, which the folder of this command has, unless -P."""
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        sys.path[0] = str(folder)


def _end_of(run: Callable[[], object]) -> BaseException | None:
    """What the program ended with, None for its last line; an error is shown as python would."""
    try:
        run()
    except (KeyboardInterrupt, SystemExit) as end:
        return end
    except Exception as error:  # noqa: BLE001 - a program raises anything
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            trace = trace.tb_next
        if trace is None and isinstance(error, ImportError):  # there is no such module to run
            complain(f"with -m, SCRIPT must be a module that can be run: {error}")
            return typer.Exit(FAILED)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return typer.Exit(FAILED)
    return None
