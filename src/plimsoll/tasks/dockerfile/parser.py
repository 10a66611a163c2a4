"""Dockerfile parser: instructions with their line numbers, by Docker's own rules.

The parser checks only the syntax. It expands no variables and does not interpret
instructions; see `words` for variables and `stages` for builds.
"""

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from plimsoll.core.errors import TaskError
from plimsoll.tasks.dockerfile.words import raw_words, unquote

__all__ = ["Dockerfile", "Flag", "Heredoc", "Instruction", "parse_dockerfile"]

# fmt: off
KEYWORDS = (
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
    "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
)
# fmt: on
WITH_FLAGS = {"ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"}
WITH_HEREDOCS = {"ADD", "COPY", "RUN"}
WITH_JSON = {"ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME"}

DIRECTIVE = re.compile(r"#[ \t]*([A-Za-z][A-Za-z0-9]*)[ \t]*=[ \t]*(.+?)[ \t]*")
DIRECTIVES = ("check", "escape", "syntax")
HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
FLAG = re.compile(r"""--([A-Za-z][A-Za-z0-9-]*)(?:=((?:"[^"]*"|'[^']*'|\S)*))?(?:\s+|$)""")


@dataclass(frozen=True, slots=True)
class Flag:
    """An option before the arguments: `--name=value`, or `--name` alone."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A text that follows an instruction, up to a line with only its name."""

    name: str
    body: str
    """The lines with their line ends; without leading tabs if `strip_tabs` is set."""
    expand: bool
    """Variables in the body are expanded, because the name is not quoted."""
    strip_tabs: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined."""

    keyword: str
    args: str
    """The text after keyword and flags, as written; includes `<<NAME` of heredocs."""
    flags: tuple[Flag, ...]
    json_form: tuple[str, ...] | None
    heredocs: tuple[Heredoc, ...]
    line: int
    end_line: int

    def flag(self, name: str) -> str | None:
        """Return the last value of a flag; "" for a flag without a value, None if it is absent."""
        values = self.flag_values(name)
        return values[-1] if values else None

    def flag_values(self, name: str) -> tuple[str, ...]:
        return tuple(flag.value or "" for flag in self.flags if flag.name == name)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A parsed Dockerfile and its escape character."""

    instructions: tuple[Instruction, ...]
    escape: str


def parse_dockerfile(text: str, name: str) -> Dockerfile:
    """Parse a text; the message of a `TaskError` begins with `name` and the line."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return _Parser(lines, name).parse()


class _Parser:
    """Single-pass parser; `at` is the index of the next line."""

    def __init__(self, lines: Sequence[str], name: str) -> None:
        self.lines = lines
        self.name = name
        self.at = 0
        self.escape = "\\"

    def parse(self) -> Dockerfile:
        self._directives()
        instructions: list[Instruction] = []
        started = False
        while self._skip_to_instruction():
            instruction = self._instruction()
            started = started or instruction.keyword == "FROM"
            if not started and instruction.keyword != "ARG":
                problem = f"{instruction.keyword} before FROM; only ARG is allowed there"
                raise self._error(instruction.line, problem)
            instructions.append(instruction)
        if not started:
            raise TaskError(f"{self.name}: no FROM instruction")
        return Dockerfile(tuple(instructions), self.escape)

    def _directives(self) -> None:
        seen: set[str] = set()
        while self.at < len(self.lines):
            match = DIRECTIVE.fullmatch(self.lines[self.at].strip())
            if match is None or match[1].lower() not in DIRECTIVES:
                return
            self.at += 1
            key = match[1].lower()
            if key in seen:
                raise self._error(self.at, f"duplicate directive {key}")
            seen.add(key)
            if key == "escape":
                if match[2] not in ("\\", "`"):
                    raise self._error(self.at, f"escape must be \\ or `, not {match[2]}")
                self.escape = match[2]

    def _skip_to_instruction(self) -> bool:
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line and not line.startswith("#"):
                return True
            self.at += 1
        return False

    def _instruction(self) -> Instruction:
        first = self.at + 1
        logical = self._logical_line()
        keyword, rest = _keyword(logical)
        if keyword not in KEYWORDS:
            close = difflib.get_close_matches(keyword, KEYWORDS, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise self._error(first, f"unknown instruction {keyword}{hint}")
        inner = _keyword(rest)[0] if keyword == "ONBUILD" else keyword
        flags, args = _flags(rest) if keyword in WITH_FLAGS else ((), rest)
        json_form = _json_form(args) if keyword in WITH_JSON else None
        heredocs: tuple[Heredoc, ...] = ()
        if inner in WITH_HEREDOCS and json_form is None:
            heredocs = self._heredocs(args, first)
        instruction = Instruction(keyword, args, flags, json_form, heredocs, first, self.at)
        self._check_arguments(instruction)
        return instruction

    def _logical_line(self) -> str:
        """Join the next line with its continuation lines; skip comments and empty lines between."""
        parts: list[str] = []
        more = True
        while more and self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if parts and (not line.strip() or line.lstrip().startswith("#")):
                continue
            line, more = self._continued(line)
            parts.append(line if parts else line.lstrip())
        return "".join(parts).rstrip()

    def _continued(self, line: str) -> tuple[str, bool]:
        """One escape character at the end continues a line; two are a literal character."""
        bare = line.rstrip(" \t")
        if bare.endswith(self.escape) and not bare.endswith(self.escape * 2):
            return bare[:-1], True
        return line, False

    def _heredocs(self, args: str, first: int) -> tuple[Heredoc, ...]:
        found: list[Heredoc] = []
        for word in raw_words(args, self.escape).words:
            match = HEREDOC.fullmatch(word)
            if match:
                name = unquote(match[2]).replace(self.escape, "")
                strip_tabs = bool(match[1])
                body = self._heredoc_body(name, strip_tabs, first)
                found.append(Heredoc(name, body, name == match[2], strip_tabs))
        return tuple(found)

    def _heredoc_body(self, name: str, strip_tabs: bool, first: int) -> str:
        body: list[str] = []
        for index in range(self.at, len(self.lines)):
            line = self.lines[index].lstrip("\t") if strip_tabs else self.lines[index]
            if line == name:
                self.at = index + 1
                return "".join(body)
            body.append(line + "\n")
        raise self._error(
            first, f"the heredoc <<{name} is not closed; end it with a line of only {name}"
        )

    def _check_arguments(self, instruction: Instruction) -> None:
        keyword, args, line = instruction.keyword, instruction.args, instruction.line
        if not args:
            raise self._error(line, f"{keyword} needs an argument")
        words = instruction.json_form or tuple(args.split())
        if keyword in ("ADD", "COPY") and len(words) < 2:
            raise self._error(line, f"{keyword} needs a source and a destination")
        if keyword == "FROM" and not (
            len(words) == 1 or (len(words) == 3 and words[1].upper() == "AS")
        ):
            raise self._error(line, f"expected FROM image, or FROM image AS name, got FROM {args}")
        if keyword == "SHELL" and not instruction.json_form:
            raise self._error(line, f'expected SHELL ["program", "argument"], got SHELL {args}')

    def _error(self, line: int, problem: str) -> TaskError:
        return TaskError(f"{self.name}:{line}: {problem}")


def _keyword(logical: str) -> tuple[str, str]:
    keyword, *rest = logical.split(None, 1) or [""]
    return keyword.upper(), rest[0] if rest else ""


def _flags(rest: str) -> tuple[tuple[Flag, ...], str]:
    flags: list[Flag] = []
    while match := FLAG.match(rest):
        value = match[2]
        flags.append(Flag(match[1], value if value is None else unquote(value)))
        rest = rest[match.end() :]
    return tuple(flags), rest


def _json_form(args: str) -> tuple[str, ...] | None:
    """Parse the JSON form. As in Docker, a malformed list is a shell command."""
    if not args.startswith("["):
        return None
    try:
        found: object = json.loads(args)
    except ValueError:
        return None
    items = cast(list[object], found)
    texts = tuple(item for item in items if isinstance(item, str))
    return texts if len(texts) == len(items) else None
