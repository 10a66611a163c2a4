"""Grader of a step: `test.sh`, the scripts that it calls, and its Python files."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from plimsoll.tasks.grader.python_file import PythonFile, read_python
from plimsoll.tasks.shell.options import split_options
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.shell.syntax import Command, Script
from plimsoll.tasks.task import Step
from plimsoll.tasks.text_files import MAX_FILES, files_below, read_text, relative_name

__all__ = [
    "CHECKS",
    "HOUSEKEEPING",
    "NO_COMPENSATION",
    "Grader",
    "ScriptFile",
    "is_runner",
    "python_module",
    "runner_name",
]

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
        """Python files of the grader: beside `test.sh`, named in a script, or test modules.

        At most `MAX_FILES`.
        """
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
            if len(found) == MAX_FILES:
                break
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


# fmt: off
RUNNERS = {
    "bats", "ctest", "jest", "mocha", "nose2", "nosetests", "nox", "phpunit", "py.test", "pytest",
    "rspec", "tox", "vitest",
}
SUBCOMMANDS = {
    "bun": ("test",), "cargo": ("test", "nextest"), "dotnet": ("test",), "go": ("test",),
    "gradle": ("test",), "gradlew": ("test",), "make": ("test", "check"), "mvn": ("test", "verify"),
    "npm": ("test", "t"), "pnpm": ("test",), "yarn": ("test",),
}
MODULES = ("pytest", "unittest", "nose2", "django", "doctest")
CHECKS = {"[", "[[", "test", "diff", "cmp", "grep", "egrep", "fgrep", "rg"}
HOUSEKEEPING = {
    ":", "true", "cat", "cd", "chmod", "chown", "cp", "cut", "date", "declare", "echo", "env",
    "export", "find", "head", "hostname", "id", "kill", "ln", "local", "ls", "mkdir", "mktemp",
    "mv", "popd", "printf", "ps", "pushd", "pwd", "readonly", "rm", "sed", "set", "shift", "shopt",
    "sleep", "sort", "tail", "tar", "tee", "touch", "tr", "trap", "typeset", "ulimit", "umask",
    "uname", "unset", "wait", "wc", "whoami", "xargs", "awk", "apt-get", "apt",
}
# Commands after `||` that do not compensate for the failed command.
NO_COMPENSATION = {
    ":", "true", "echo", "printf", "sleep", "exit", "return", "cat", "rm", "continue", "break",
    "tee", "false", "ls", "date", "set", "unset",
}
# fmt: on
PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?|pypy3?")
WITH_VALUE = ("-m", "-c", "-W", "-X")
UV_VALUES = (
    "-w",
    "--with",
    "--from",
    "-p",
    "--python",
    "--extra",
    "--group",
    "--with-requirements",
)


def python_module(command: Command) -> str | None:
    """Return the module of `python -m module`; None for any other command."""
    plain = command.unwrapped()
    if not PYTHON.fullmatch(plain.name):
        return None
    return split_options(plain.args, WITH_VALUE, stop=True).value("-m")


def runner_name(command: Command) -> str | None:
    """Return the display name of a test runner; None for any other command."""
    plain = command.unwrapped()
    if plain.name in RUNNERS:
        return plain.name
    module = (python_module(plain) or "").split(".")[0]
    if module in MODULES:
        return module
    if plain.name in ("uvx", "uv", "npx", "poetry", "pipx", "coverage", "xvfb-run"):
        operands = split_options(plain.args, UV_VALUES, stop=True).operands
        if operands[:1] == ("run",):
            operands = split_options(operands[1:], UV_VALUES, stop=True).operands
        first = operands[0].split("@")[0] if operands else ""
        if first in RUNNERS:
            return first
        if PYTHON.fullmatch(first) and "-m" in operands:
            after = operands[operands.index("-m") + 1 :]
            return after[0] if after and after[0] in MODULES else None
        return None
    subcommands = SUBCOMMANDS.get(plain.name, ())
    operands = split_options(plain.args, ("-C", "-f", "--prefix")).operands
    first = operands[:1]
    return f"{plain.name} {first[0]}" if first and first[0] in subcommands else None


def is_runner(command: Command) -> bool:
    return runner_name(command) is not None
