"""The command line, `autoswizzle`."""

from autoswizzle.cli.app import main

__all__ = ["main"]
