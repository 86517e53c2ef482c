"""How a command fails: one line on stderr and the exit code that goes with it."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer

from autoswizzle.errors import ArgumentError, printable

LONGEST = 1000  # characters of an error
FAILED, BAD_ARGUMENTS = 1, 2

# typer brings its own copy of click's exceptions or imports click, depending on its version;
# the base of its public BadParameter is the same class either way.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def one_line(message: object) -> str:
    """The message with every run of white space made one blank, and terminal codes escaped."""
    return printable(" ".join(str(message).split()))


def complain(message: object) -> None:
    """Print one line on stderr; of one that quotes a very long text the middle is left out."""
    line = one_line(message)
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    print(f"error: {line}", file=sys.stderr)


def note(message: object) -> None:
    """Print one line on stderr that is no error."""
    print(one_line(message), file=sys.stderr)


def name_of(param: Any) -> str:  # noqa: ANN401  # click's, see UsageError
    """The name a user knows a parameter by: --option, or an argument's as the usage shows it."""
    name = str(param.opts[0])
    return name if name.startswith("-") else str(param.metavar or name).lower()


def usage_message(error: Exception, args: Sequence[str]) -> str:
    """A UsageError as one sentence that names the bad text and the legal form."""
    usage: Any = error
    message, context = usage.format_message().rstrip("."), usage.ctx
    if type(error) is typer.BadParameter:
        name = name_of(usage.param)
        message = usage.message.removeprefix(f"{name.lstrip('-')} ")
        return f"{name} {message}" if message.startswith("must ") else f"{name}: {message}"
    if context is None:  # an option without its value; the message names it
        return str(message)
    if hasattr(usage, "possibilities"):  # no such option
        negative = next((arg for arg in args if re.match(r"-\d", arg)), None)
        if negative and negative.startswith(usage.option_name):
            return f"an extent must be an integer of at least 1, got {negative!r}"
        options = [param.opts[0] for param in context.command.params if param.opts[0][0] == "-"]
        return f"{usage.message}; the options are {', '.join([*options, '--help'])}"
    if message.startswith(("No such command", "Missing command")):
        names = ", ".join(context.command.commands)
        return f"{message}; the commands are {names} ({context.command_path} --help says more)"
    return f"{message}; {context.get_usage()}"


def exit_code(error: Exception) -> int:
    """2 for what the caller got wrong, 1 for work that failed."""
    return BAD_ARGUMENTS if isinstance(error, ArgumentError) else FAILED
