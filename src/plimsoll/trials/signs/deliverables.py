"""What the instruction asks the agent to make: its absence is the agent's, not the grader's."""

import re

__all__ = ["Deliverables"]

_SPAN = re.compile(r"`{1,3}([^`]{1,2000})`{1,3}")
_WORD = re.compile(r"\w+")
_ABOUT_MODULES = re.compile(
    r"\b(?:install|import|module|package|library|called|named)", re.IGNORECASE
)
_ABOUT_TOOLS = re.compile(r"\b(?:install|build|compile|set up|available)|\bPATH\b", re.IGNORECASE)
_ENGLISH = frozenset({"go", "make", "diff", "timeout", "node", "prove", "bats", "deno", "bun"})
_WRITE_TESTS = re.compile(
    r"\b(?:write|add|create|implement|provide)\b[^.\n]{0,60}\btests?\b", re.IGNORECASE
)


class Deliverables:
    """Answers, from the instruction's text alone, whether a missing thing was asked for."""

    def __init__(self, instruction: str) -> None:
        self._text = instruction
        self._quoted: frozenset[str] = frozenset(
            word for span in _SPAN.findall(instruction) for word in _WORD.findall(span)
        )
        self._lines = instruction.splitlines()

    def module(self, name: str) -> bool:
        """Whether a module is named as `x.py`, as a folder `x/`, in backticks, or to install."""
        parts = [part for part in name.replace("/", ".").split(".") if part]
        if not parts:
            return False
        # Of `a.b` the parent was found, so `a` is there: any mention of it says whose it is.
        if len(parts) > 1 and self._says(parts[0]):
            return True
        return any(self._names(part) for part in {parts[0], parts[-1]})

    def _names(self, name: str) -> bool:
        spelt = re.escape(name).replace("_", "[-_]")
        if re.search(rf"(?<!\w){spelt}(?:\.\w{{1,4}}\b|/)|/{spelt}(?!\w)", self._text):
            return True
        return name in self._quoted or self._on_a_line(name, _ABOUT_MODULES)

    def tool(self, name: str) -> bool:
        """Whether a command is one that the agent is to install or build."""
        if name in _ENGLISH and name not in self._quoted:
            return False
        return self._on_a_line(name, _ABOUT_TOOLS)

    def path(self, path: str) -> bool:
        """Whether a file or folder is named, in full or by its last part."""
        last = path.rstrip("/").rsplit("/", 1)[-1]
        return path in self._text or ("." in last and self._says(last))

    def folder(self, path: str) -> bool:
        """Whether the folder is spoken of at all, by its first two parts (`/opt/name`)."""
        return "/".join(path.split("/")[:3]) in self._text

    def host(self, host: str) -> bool:
        return host.lower() in self._text.lower()

    def tests(self) -> bool:
        """Whether the agent is to write tests itself."""
        return _WRITE_TESTS.search(self._text) is not None

    def _says(self, word: str) -> bool:
        return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", self._text) is not None

    def _on_a_line(self, word: str, about: re.Pattern[str]) -> bool:
        whole = re.compile(rf"(?<![\w/.-]){re.escape(word)}(?![\w/-])")
        return any(about.search(line) and whole.search(line) for line in self._lines)
