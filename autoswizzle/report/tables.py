"""Plain-text tables and JSON on stdout."""

import json
import re
from collections.abc import Sequence

from autoswizzle.errors import printable

_NUMBER = re.compile(r"-|-?[0-9][0-9,.]*( [kMGTP]?B)?")


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned under their titles: numbers and byte sizes to the right, text to the left."""
    cells = [[text_of(value) for value in row] for row in rows]
    lines = [list(titles), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    right = [all(_NUMBER.fullmatch(row[i]) for row in cells) for i in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """One `name  value` line for each pair, values aligned."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {text_of(value)}" for name, value in pairs)


def grid(values: Sequence[Sequence[int]]) -> str:
    """A grid of integers, one line a row, right-aligned."""
    width = max(len(str(value)) for row in values for value in row)
    return "\n".join(" ".join(str(value).rjust(width) for value in row) for row in values)


def byte_size(count: float) -> str:
    """A number of bytes in the decimal unit that fits: 1.460 GB."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while count >= 1000 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3f} {units[power]}" if power else f"{count:.0f} B"


def print_json(data: object) -> None:
    """Print data as JSON; NaN and infinity are refused, as JSON has no word for them."""
    print(json.dumps(data, indent=2, allow_nan=False))


def text_of(value: object) -> str:
    """A value as tables show it: - for none, three decimals below 10, one above; text printable."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return printable(value)
