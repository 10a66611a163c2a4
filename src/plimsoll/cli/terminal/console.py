"""Consoles for standard output and standard error, and the text that goes to them."""

import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from plimsoll.cli.terminal.streams import lossy_stream

__all__ = ["MIN_WIDTH", "Screen", "console", "print_all", "print_table"]

_FILE_WIDTH = 240


def console(*, stderr: bool) -> Console:
    """A console without markup. Output to a file is not folded."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _FILE_WIDTH
    return made


class Screen:
    """The consoles of a command: `out` for results, `err` for progress and warnings."""

    def __init__(self, *, as_json: bool) -> None:
        self.err = console(stderr=True)
        # With --json, only the JSON object goes to stdout.
        self.out = self.err if as_json else console(stderr=False)
        if not as_json:
            self.out.file = lossy_stream(sys.stdout)  # fixed now: stdout is redirected later


MIN_WIDTH = 12
"""The `min_width` of columns that may be folded."""
_ANY_WIDTH = 10_000


def print_table(out: Console, table: Table) -> None:
    """Print a table. On a narrow terminal its lines wrap: no figure is cut and no column is
    dropped."""
    _, right, _, left = table.padding
    width = sum(_width(out, column) + left + right for column in table.columns)
    if width > out.width:
        table.width = width
    out.print(table, crop=False)


def print_all(out: Console, lines: Iterable[RenderableType]) -> None:
    """Print lines, and tables among them."""
    for line in lines:
        if isinstance(line, Table):
            print_table(out, line)
        else:
            out.print(line, soft_wrap=isinstance(line, Text))


def _width(out: Console, column: Column) -> int:
    if column.min_width is not None:
        return column.min_width
    options = out.options.update(width=_ANY_WIDTH)
    cells = (column.header, *column.cells)
    return max(Measurement.get(out, options, cell).maximum for cell in cells)
