"""Tables on terminals that are too narrow for them."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

__all__ = ["LEAST", "print_all", "print_table"]

LEAST = 12
"""The `min_width` of columns that are folded where there is little room."""
_ANY_WIDTH = 10_000


def print_table(out: Console, table: Table) -> None:
    """Print a table. Where the terminal has not the room for it, lines go on in the next: no
    figure is cut, and no column is left out."""
    _, right, _, left = table.padding
    needed = sum(_needed(out, column) + left + right for column in table.columns)
    if needed > out.width:
        table.width = needed
    out.print(table, crop=False)


def print_all(out: Console, lines: Iterable[RenderableType]) -> None:
    """Print lines, and tables among them."""
    for line in lines:
        if isinstance(line, Table):
            print_table(out, line)
        else:
            out.print(line, soft_wrap=isinstance(line, Text))


def _needed(out: Console, column: Column) -> int:
    if column.min_width is not None:
        return column.min_width
    options = out.options.update(width=_ANY_WIDTH)
    cells = (column.header, *column.cells)
    return max(Measurement.get(out, options, cell).maximum for cell in cells)
