"""Consoles for standard output and standard error."""

import sys

from rich.console import Console

from plimsoll.cli.terminal.streams import lossy_stream

__all__ = ["Screen", "console"]

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
