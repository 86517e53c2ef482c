"""The typer application: its commands, its global options, and what an error becomes."""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from autoswizzle.cli import (
    INTERRUPTED,
    bench,
    cache,
    calibrate,
    demo,
    doctor,
    explain,
    order,
    predict,
    record,
    report,
    smem,
    tune,
)
from autoswizzle.cli.failures import (
    BAD_ARGUMENTS,
    FAILED,
    UsageError,
    complain,
    exit_code,
    one_line,
    usage_message,
)
from autoswizzle.errors import AutoswizzleError
from autoswizzle.settings import settings

app = typer.Typer(
    help="Find, keep and reuse the fastest GEMM configuration for each problem on each GPU.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command(context_settings={"allow_interspersed_args": False})(record.record)
app.command()(tune.tune)
app.command()(bench.bench)
app.command()(predict.rank)
app.command()(predict.simulate)
app.command()(order.order)
app.command()(calibrate.calibrate)
app.command()(smem.smem)
app.command()(explain.explain)
app.command()(report.report)
app.command()(doctor.doctor)
app.add_typer(cache.app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"autoswizzle {metadata.version('autoswizzle')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it and exit."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


class _OneLine(logging.Formatter):
    """A record as one line, whatever the names in it hold."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return one_line(super().format(record))


def _prepare() -> None:
    """Check the environment and send the package's log to stderr."""
    logger = logging.getLogger("autoswizzle")
    logger.setLevel(settings().log_level.upper())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(levelname)s: %(message)s"))
    logger.handlers = [handler]


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; see failures."""
    try:
        if "--help" not in args:  # help must work in a broken environment too
            _prepare()
        code = app(args=args, prog_name="autoswizzle", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        complain(usage_message(error, args))
        return BAD_ARGUMENTS
    except AutoswizzleError as error:
        complain(error)
        return exit_code(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout is gone; the interpreter's own flush at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        return FAILED
    if code == INTERRUPTED:  # typer makes it of a KeyboardInterrupt, too
        complain("interrupted")
    return code if isinstance(code, int) else 0


def start() -> None:
    """Run the process's own command line and exit with its code."""
    if sys.stderr is None:  # closed by the caller; print would take stdout for it
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # to the end
    if sys.stdout is None:
        complain("stdout must be open, got a closed one")
        sys.exit(FAILED)
    sys.exit(run(sys.argv[1:]))
