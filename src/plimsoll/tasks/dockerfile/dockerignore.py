"""Rules of `.dockerignore`, as Docker applies them to a build context.

The last pattern that matches a path or one of its parent folders decides.
"""

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import TaskError

__all__ = ["IgnoreRules", "glob_regex"]


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One pattern; `keeps` is true for an exception (`!`)."""

    pattern: re.Pattern[str]
    keeps: bool


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules of a `.dockerignore`, in order."""

    rules: tuple[IgnoreRule, ...] = ()

    @classmethod
    def from_file(cls, path: Path) -> "IgnoreRules":
        """Read a file; a missing file has no rules."""
        try:
            return cls.from_text(path.read_text("utf-8-sig"), str(path))
        except FileNotFoundError:
            return cls()
        except UnicodeDecodeError as error:
            raise TaskError(f"{path}: not UTF-8 text") from error

    @classmethod
    def from_text(cls, text: str, name: str = ".dockerignore") -> "IgnoreRules":
        rules: list[IgnoreRule] = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.startswith("#"):
                continue
            pattern = line.strip()
            keeps = pattern.startswith("!")
            pattern = _clean(pattern.removeprefix("!").strip()) if pattern else ""
            if keeps and not pattern:
                raise TaskError(f"{name}:{number}: ! needs a pattern after it")
            if pattern in ("", "."):
                continue
            try:
                rules.append(IgnoreRule(re.compile(glob_regex(pattern), re.DOTALL), keeps))
            except (re.error, ValueError) as error:
                raise TaskError(f"{name}:{number}: not a pattern: {line.strip()}") from error
        return cls(tuple(rules))

    def ignored(self, relative_posix: str) -> bool:
        """Whether a path is ignored; it is relative to the context and uses `/`."""
        parts = relative_posix.strip("/").split("/")
        paths = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
        ignored = False
        for rule in self.rules:
            # Skip rules that cannot change the result.
            if rule.keeps == ignored and any(rule.pattern.fullmatch(path) for path in paths):
                ignored = not rule.keeps
        return ignored

    @property
    def has_exceptions(self) -> bool:
        """A rule has exceptions, so ignored folders must still be searched."""
        return any(rule.keeps for rule in self.rules)


def _clean(pattern: str) -> str:
    """Normalize a pattern to a path relative to the context."""
    return posixpath.normpath(pattern).lstrip("/") if pattern else ""


def glob_regex(pattern: str) -> str:
    """Translate a pattern to a regular expression; `ValueError` if it is malformed.

    `**` matches any number of folders, `*` and `?` match within one name, `[…]` matches one
    character of a set.
    """
    regex = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at):
            regex, at = regex + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            regex, at = regex + ".*", at + 2
        elif char == "*":
            regex, at = regex + "[^/]*", at + 1
        elif char == "?":
            regex, at = regex + "[^/]", at + 1
        elif char == "[":
            end = _end_of_set(pattern, at)
            regex, at = regex + _set(pattern[at + 1 : end]), end + 1
        elif char == "\\":
            if at + 1 == len(pattern):
                raise ValueError("nothing to escape")
            regex, at = regex + re.escape(pattern[at + 1]), at + 2
        else:
            regex, at = regex + re.escape(char), at + 1
    return regex


def _end_of_set(pattern: str, at: int) -> int:
    match = re.compile(r"\[\^?(?:\\.|[^\]\\])+\]").match(pattern, at)
    if match is None:
        raise ValueError("a set has no end")
    return match.end() - 1


def _set(inner: str) -> str:
    negated = inner.startswith("^")
    inner = inner[negated:]
    safe = re.sub(r"\\.|[\[&~|^]", lambda found: "\\" + found[0][-1], inner)
    return f"[{'^' if negated else ''}{safe}]"
