"""Printing of tables and lines, also on terminals that are too narrow."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

__all__ = ["MIN_WIDTH", "print_all", "print_table"]

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
