"""Words of Dockerfile instructions: splitting, quotes and variable expansion as in Docker.

Words are split before expansion, so a value with spaces stays one word. Error messages begin
with `where`, the file and line given by the caller.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.core.errors import TaskError

__all__ = [
    "Words",
    "expand_words",
    "parse_arg",
    "parse_pairs",
    "raw_words",
    "split_words",
    "unquote",
]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?!$-]")
MODIFIERS = re.compile(r":?[-+?]")


@dataclass(frozen=True, slots=True)
class Words:
    """Words as written, with quotes and escapes."""

    words: tuple[str, ...]
    unclosed: str | None
    """The quote that is not closed; the incomplete last word is omitted."""


def raw_words(text: str, escape: str = "\\") -> Words:
    """Split at white space that is neither quoted nor escaped; do not expand."""
    words: list[str] = []
    word = ""
    quote: str | None = None
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if quote is None and char.isspace():
            if word:
                words.append(word)
            word = ""
            continue
        word += char
        if char == escape and quote != "'" and position < len(text):
            word += text[position]
            position += 1
        elif quote is None and char in "\"'":
            quote = char
        elif char == quote:
            quote = None
    if word and quote is None:
        words.append(word)
    return Words(tuple(words), quote)


def split_words(text: str, escape: str = "\\", where: str = "Dockerfile") -> tuple[str, ...]:
    """Split the words of COPY, ENV, LABEL and ARG; do not expand."""
    found = raw_words(text, escape)
    if found.unclosed:
        raise TaskError(f"{where}: the quote {found.unclosed} is not closed in: {text}")
    return found.words


def parse_pairs(
    text: str, escape: str = "\\", where: str = "Dockerfile"
) -> tuple[tuple[str, str], ...]:
    """Parse names and values of ENV and LABEL: `k=v k2="v 2"`, or the older `k value`."""
    name, *rest = text.split(None, 1)
    if "=" not in name:
        if not rest:
            raise TaskError(f"{where}: expected name=value, got {text}")
        return ((name, rest[0].strip()),)
    pairs: list[tuple[str, str]] = []
    for word in split_words(text, escape, where):
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise TaskError(f"{where}: expected name=value, got {word}")
        pairs.append((key, value))
    return tuple(pairs)


def parse_arg(
    text: str, escape: str = "\\", where: str = "Dockerfile"
) -> tuple[tuple[str, str | None], ...]:
    """Parse the names of ARG, each with its default or None."""
    found: list[tuple[str, str | None]] = []
    for word in split_words(text, escape, where):
        key, equals, value = word.partition("=")
        if not key:
            raise TaskError(f"{where}: expected name or name=default, got {word}")
        found.append((key, value if equals else None))
    return tuple(found)


def unquote(text: str) -> str:
    """Remove quotes; do not expand."""
    return text.replace('"', "").replace("'", "")


def expand_words(
    text: str,
    env: Mapping[str, str],
    escape: str = "\\",
    where: str = "Dockerfile",
    *,
    keep_quotes: bool = False,
) -> str:
    """Expand variables and remove quotes and escapes. An unset variable is empty.

    With `keep_quotes`, quotes are ordinary characters, as in the body of a heredoc.
    """
    return _Expansion(text, env, escape, where, keep_quotes).until(None)


class _Expansion:
    """Single-pass expansion; `at` is the index of the next character."""

    def __init__(
        self, text: str, env: Mapping[str, str], escape: str, where: str, keep_quotes: bool
    ) -> None:
        self.text = text
        self.env = env
        self.escape = escape
        self.where = where
        self.keep_quotes = keep_quotes
        self.at = 0

    def until(self, stop: str | None) -> str:
        """Expand up to and including the character `stop`, or to the end."""
        parts: list[str] = []
        while self.at < len(self.text):
            char = self._next()
            if char == stop:
                return "".join(parts)
            if char == self.escape:
                parts.append(self._next() if self.at < len(self.text) else "")
            elif char == "'" and not self.keep_quotes:
                parts.append(self._single_quoted())
            elif char == '"' and not self.keep_quotes:
                parts.append(self._double_quoted())
            elif char == "$":
                parts.append(self._variable())
            else:
                parts.append(char)
        if stop is not None:
            raise self._error(f"{stop} is missing")
        return "".join(parts)

    def _next(self) -> str:
        char = self.text[self.at]
        self.at += 1
        return char

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise self._error("the quote ' is not closed")
        quoted = self.text[self.at : end]
        self.at = end + 1
        return quoted

    def _double_quoted(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text):
            char = self._next()
            if char == '"':
                return "".join(parts)
            if char == self.escape and self.text[self.at : self.at + 1] in ('"', "$", self.escape):
                parts.append(self._next())
            elif char == "$":
                parts.append(self._variable())
            else:
                parts.append(char)
        raise self._error('the quote " is not closed')

    def _variable(self) -> str:
        braced = self.text.startswith("{", self.at)
        self.at += braced
        name = NAME.match(self.text, self.at)
        if name is None:
            if braced:
                raise self._error("${ without a name")
            return "$"
        self.at = name.end()
        value = self.env.get(name[0])
        if not braced:
            return value or ""
        if self.text.startswith("}", self.at):
            self.at += 1
            return value or ""
        return self._modified(name[0], value)

    def _modified(self, name: str, value: str | None) -> str:
        """`-` replaces an unset value, `+` a set one; with `:` an empty value counts as unset."""
        modifier = MODIFIERS.match(self.text, self.at)
        if modifier is None:
            raise self._error(f"${{{name}{self.text[self.at : self.at + 1]}…}} is not supported")
        self.at = modifier.end()
        word = self.until("}")
        is_set = bool(value) if modifier[0].startswith(":") else value is not None
        if modifier[0].endswith("+"):
            return word if is_set else ""
        if is_set:
            return value or ""
        if modifier[0].endswith("?"):
            raise self._error(f"{name} is not set{': ' + word if word else ''}")
        return word

    def _error(self, problem: str) -> TaskError:
        text = self.text if len(self.text) <= 120 else f"{self.text[:120]}…"
        return TaskError(f"{self.where}: {problem} in: {text}")
