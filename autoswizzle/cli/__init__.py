"""The command line, `autoswizzle`."""

import sys

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    try:
        from autoswizzle.cli.app import start  # takes a moment, in which Ctrl-C may come too

        start()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
