"""Deliverables: items that the instruction asks the agent to create.

The agent, not the grader, is to blame for a missing deliverable.
"""

import re

__all__ = ["Deliverables"]

_SPAN = re.compile(r"`{1,3}([^`]{1,2000})`{1,3}")
_WORD = re.compile(r"\w+")
_ABOUT_MODULES = re.compile(
    r"\b(?:install|import|module|package|library|called|named)", re.IGNORECASE
)
_ABOUT_TOOLS = re.compile(r"\b(?:install|build|compile|set up|available)|\bPATH\b", re.IGNORECASE)
_ENGLISH_WORDS = frozenset(
    {"go", "make", "diff", "timeout", "node", "prove", "bats", "deno", "bun"}
)
_WRITE_TESTS = re.compile(
    r"\b(?:write|add|create|implement|provide)\b[^.\n]{0,60}\btests?\b", re.IGNORECASE
)


class Deliverables:
    """Tells from the instruction's text alone whether a missing item was requested."""

    def __init__(self, instruction: str) -> None:
        self._text = instruction
        self._quoted: frozenset[str] = frozenset(
            word for span in _SPAN.findall(instruction) for word in _WORD.findall(span)
        )
        self._lines = instruction.splitlines()

    def has_module(self, name: str) -> bool:
        """Whether a module is named as `x.py`, as folder `x/`, in backticks, or to be installed."""
        parts = [part for part in name.replace("/", ".").split(".") if part]
        if not parts:
            return False
        # For `a.b` the import of `a` succeeded: any mention of `a` is enough.
        if len(parts) > 1 and self._mentions(parts[0]):
            return True
        return any(self._names(part) for part in {parts[0], parts[-1]})

    def _names(self, name: str) -> bool:
        spelt = re.escape(name).replace("_", "[-_]")
        if re.search(rf"(?<!\w){spelt}(?:\.\w{{1,4}}\b|/)|/{spelt}(?!\w)", self._text):
            return True
        return name in self._quoted or self._on_a_line(name, _ABOUT_MODULES)

    def has_tool(self, name: str) -> bool:
        """Whether the agent is to install or build a command."""
        if name in _ENGLISH_WORDS and name not in self._quoted:
            return False
        return self._on_a_line(name, _ABOUT_TOOLS)

    def has_path(self, path: str) -> bool:
        """Whether a file or folder is named, by its full path or its last part."""
        last = path.rstrip("/").rsplit("/", 1)[-1]
        return path in self._text or ("." in last and self._mentions(last))

    def mentions_folder(self, path: str) -> bool:
        """Whether the folder is mentioned, by its first two parts (`/opt/name`)."""
        return "/".join(path.split("/")[:3]) in self._text

    def mentions_host(self, host: str) -> bool:
        return host.lower() in self._text.lower()

    def include_tests(self) -> bool:
        """Whether the agent is to write tests."""
        return _WRITE_TESTS.search(self._text) is not None

    def _mentions(self, word: str) -> bool:
        return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", self._text) is not None

    def _on_a_line(self, word: str, about: re.Pattern[str]) -> bool:
        exact = re.compile(rf"(?<![\w/.-]){re.escape(word)}(?![\w/-])")
        return any(about.search(line) and exact.search(line) for line in self._lines)
