"""A task's docker-compose.yaml as a text: where things stand in it, and what it may not do.

What the file means is for Compose itself to say. Two things are looked for before it is asked,
since reading them would already reach out of the task's folder: other compose files, and files
of variables.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from plimsoll.core.errors import BuildError, SandboxUnsupported

__all__ = ["ComposeFile", "Tree", "rows", "table", "tables", "words"]

Tree = dict[str, object]
"""A part of the file, as JSON has it."""

_LARGEST = 1 << 20
_ESCAPED_KEY = re.compile(r'"(?:[^"\\]|\\.)*\\[xuU\n](?:[^"\\]|\\.)*"\s*:', re.DOTALL)
_OTHER_FILES = re.compile(r"(?<![\w.-])(include|extends)[\"']?\s*:")
_HIDDEN_KEY = re.compile(r"(?m)^\s*(?:-\s+)*\?\s|[{,]\s*\?\s|\*[\w.-]+\s+:")


@dataclass(frozen=True, slots=True)
class ComposeFile:
    """One compose file, and how to name a place in it."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "ComposeFile":
        try:
            data = path.read_bytes()
            if len(data) > _LARGEST:
                raise BuildError(f"{path}: more than {_LARGEST} bytes")
            file = cls(path, data.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise BuildError(f"{path}: not UTF-8 text") from None
        except OSError as error:
            raise BuildError(f"{path}: cannot be read: {error.strerror}") from None
        file._check_text()
        return file

    @property
    def folder(self) -> Path:
        return self.path.parent

    def refuse(self, *keys: str, why: str) -> NoReturn:
        """Refuse the task for what stands at a place of its file."""
        raise SandboxUnsupported(f"{self.where(*keys)}: {why}")

    def where(self, *keys: str) -> str:
        """A place of the file for a message: its line, where that can be told, and its name."""
        line = self._line(keys)
        place = f"{self.path}:{line}" if line else f"{self.path}"
        return f"{place}: {'.'.join(keys)}"

    def inside(self, path: str, *keys: str) -> Path:
        """A path that the file names, which has to be in the file's folder, links followed."""
        found = Path(path) if Path(path).is_absolute() else self.folder / path
        real, folder = found.resolve(), self.folder.resolve()
        if not real.is_relative_to(folder):
            self.refuse(*keys, why=f"{path} is outside of the task's environment folder")
        return real

    def check_files_of_variables(self, raw: Tree) -> None:
        """Look at `env_file` and `label_file` in what Compose read, before it follows them."""
        for name, service in tables(raw.get("services")):
            for key in ("env_file", "label_file"):
                for path in _paths(service.get(key)):
                    if "$" in path:
                        self.refuse("services", name, key, why="variables in its path")
                    self.inside(path, "services", name, key)

    def _check_text(self) -> None:
        for pattern, why in (
            (_OTHER_FILES, "services of other files are not taken in: write them here"),
            (_ESCAPED_KEY, "a key written with escapes: write it plainly"),
            (_HIDDEN_KEY, "a key written with ? or *: write it plainly"),
        ):
            for found in pattern.finditer(self.text):
                start = self.text.rfind("\n", 0, found.end() - 1) + 1
                if self.text[start : found.end()].lstrip().startswith("#"):
                    continue
                line = self.text.count("\n", 0, found.start()) + 1
                word = f" {found[1]}:" if pattern is _OTHER_FILES else ""
                raise SandboxUnsupported(f"{self.path}:{line}:{word} {why}")

    def _line(self, keys: tuple[str, ...]) -> int | None:
        """The line where the last key stands that follows the others, as far as text can tell."""
        at = 0
        for number, key in enumerate(keys):
            before = r"(?:^|[\s{,])" if number else "^"
            pattern = re.compile(rf"{before}[\"']?{re.escape(key)}[\"']?\s*:", re.MULTILINE)
            found = pattern.search(self.text, at)
            if found is None:
                break
            at = found.end() - 1
        return self.text.count("\n", 0, at) + 1 if at else None


def table(value: object) -> Tree:
    """A mapping of the file; nothing is an empty one."""
    return cast(Tree, value) if isinstance(value, dict) else {}


def tables(value: object) -> Iterator[tuple[str, Tree]]:
    """The mappings in a mapping, by name."""
    for name, inner in table(value).items():
        yield name, table(inner)


def rows(value: object) -> list[object]:
    """A list of the file; nothing is an empty one."""
    return cast(list[object], value) if isinstance(value, list) else []


def words(value: object) -> list[str]:
    """A list of words, or one by itself."""
    return [value] if isinstance(value, str) else [str(word) for word in rows(value)]


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for entry in rows(value):
        yield entry if isinstance(entry, str) else str(table(entry).get("path") or "")
