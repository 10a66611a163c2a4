"""Grader of a step: `test.sh`, the scripts that it calls, and its Python files."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from plimsoll.tasks.grader.python_file import PythonFile, read_python
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.shell.syntax import Script
from plimsoll.tasks.task import Step
from plimsoll.tasks.text_files import files_below, read_text, relative_name

__all__ = ["Grader", "ScriptFile"]

TEST_MODULE = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A shell script of the tests."""

    file: str
    """Relative to the task folder."""
    name: str
    """Relative to `/tests`."""
    raw: bytes
    script: Script


class Grader:
    """The files that grade a step, read on demand."""

    def __init__(self, step: Step) -> None:
        self.step = step

    @cached_property
    def files(self) -> dict[str, Path]:
        """All files of `/tests` in the sandbox, by their names there."""
        found: dict[str, Path] = {}
        for folder in self.step.tests_dirs:
            for path in files_below(folder, "*"):
                found[path.relative_to(folder).as_posix()] = path
        return found

    @cached_property
    def main(self) -> ScriptFile | None:
        path = self.step.test_script
        return self._script("test.sh", path) if path is not None else None

    @cached_property
    def scripts(self) -> dict[str, ScriptFile]:
        """`test.sh` and all scripts that it calls, directly or not, by their names in `/tests`."""
        found: dict[str, ScriptFile] = {}
        pending = [self.main] if self.main is not None else []
        while pending:
            source = pending.pop()
            if source.name in found:
                continue
            found[source.name] = source
            for name in self._named_in(source.script):
                if name not in found and name.endswith((".sh", ".bash")):
                    called = self._script(name, self.files[name])
                    pending += [called] if called is not None else []
        return found

    @cached_property
    def pythons(self) -> dict[str, PythonFile]:
        """Python files of the grader: beside `test.sh`, named in a script, or test modules."""
        named = {n for source in self.scripts.values() for n in self._named_in(source.script)}
        found: dict[str, PythonFile] = {}
        for name, path in self.files.items():
            if name.endswith(".py") and (
                "/" not in name or name in named or TEST_MODULE.fullmatch(path.name)
            ):
                text = read_text(path)
                if text is not None:
                    found[name] = read_python(
                        relative_name(path, self.step.task_folder), name, text
                    )
        return found

    def _script(self, name: str, path: Path) -> ScriptFile | None:
        text = read_text(path)
        if text is None:
            return None
        file = relative_name(path, self.step.task_folder)
        return ScriptFile(file, name, path.read_bytes(), parse_script(text))

    def _named_in(self, script: Script) -> list[str]:
        """Return the test files that the words of a script name."""
        words = [w for command in script.commands for w in (command.name, *command.args)]
        return [name for word in words if (name := self.file_named(word)) is not None]

    def file_named(self, word: str) -> str | None:
        """Return the file of `/tests` that a word refers to, with or without its folder."""
        path = PurePosixPath(word.split("::")[0])
        parts = [part for part in path.parts if part not in ("/", ".")]
        for start in range(len(parts)):
            name = "/".join(parts[start:])
            # `/app/setup.py` is not the tests' `setup.py`.
            if name in self.files and (start == 0 or _is_tests_folder(parts[:start])):
                return name
        return None


def _is_tests_folder(folders: list[str]) -> bool:
    return folders[-1] in ("tests", "..") or folders[-1].startswith(("$", '"$', "$("))
