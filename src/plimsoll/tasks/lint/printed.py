"""What a command prints, where its words tell."""

import re

from plimsoll.tasks.lint.state import UNKNOWN, is_known
from plimsoll.tasks.lint.syntax import Command

__all__ = ["printed"]

ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def printed(plain: Command) -> str:
    """The output of `echo`, `printf`, `cat <<END` and of what prints nothing at all."""
    match plain.name:
        case "echo":
            words = list(plain.args)
            while words and re.fullmatch(r"-[neE]+", words[0]):
                words.pop(0)
            text = " ".join(words)
        case "printf":
            text = _formatted(plain.args)
        case "cat" if not plain.args and plain.heredoc is not None:
            text = plain.heredoc
        case ":" | "true":
            text = ""
        case _:
            return UNKNOWN
    return text.strip() if is_known(text) else UNKNOWN


def _formatted(args: tuple[str, ...]) -> str:
    if not args or args[0].startswith("-v"):
        return UNKNOWN
    form, values = args[0], list(args[1:])
    for escape, char in ESCAPES.items():
        form = form.replace(escape, char)

    def value(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        return values.pop(0) if values else ""

    return re.sub(r"%%|%[-+ 0-9.]*[sdifgb]", value, form)
