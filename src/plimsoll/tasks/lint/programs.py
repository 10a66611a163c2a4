"""What becomes of the programs that a script runs, as far as their names and words tell."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plimsoll.tasks.lint.conditions import is_missing
from plimsoll.tasks.lint.grader import TEST_MODULE, Grader
from plimsoll.tasks.lint.runners import HOUSEKEEPING, JUDGES, is_runner, python_module
from plimsoll.tasks.lint.state import UNKNOWN, State
from plimsoll.tasks.lint.syntax import Command

__all__ = ["Programs"]


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of an image and the Python files of a grader."""

    grader: Grader
    known: frozenset[str]
    """Programs that are in the image for sure."""
    broken: Mapping[str, frozenset[int]]
    """Python files of the tests that cannot run, each with the fetches at fault."""

    def is_there(self, name: str, state: State) -> bool | None:
        """What `command -v` says; None where that cannot be told."""
        if name in state.missing:
            return False
        return True if name in self.known else None

    def run(self, plain: Command, state: State) -> State:
        """The state after a command of which no more is known than its name and its words."""
        judged = plain.name in JUDGES or is_runner(plain)
        state = replace(state, tested=state.tested or judged)
        if self._cannot_run(plain, state):
            return replace(state, status=False)
        python = self._python_file(plain)
        if python is not None:
            source = self.grader.pythons[python]
            state = replace(state, tested=True)
            if python in self.broken:
                zero = "0" if source.zero_when_import_fails or source.catches_all else state.txt
                failed = state.failed | self.broken[python]
                return replace(state, status=False, txt=zero, failed=failed)
            if source.writes_reward:
                state = replace(state, txt=UNKNOWN)
        elif is_runner(plain) and (faults := self._broken_modules()):
            return replace(state, status=False, failed=state.failed | faults)
        if plain.name in ("bash", "sh", "zsh") and plain.position > 0:
            return replace(state, status=True)
        return replace(state, status=True if plain.name in HOUSEKEEPING else None)

    def _cannot_run(self, plain: Command, state: State) -> bool:
        module = python_module(plain)
        if plain.name in state.missing or (module is not None and module in state.missing):
            return True
        if plain.name in ("mkdir", "echo", "printf", "rm", "export", "git", "touch"):
            return False
        return any(is_missing(word, state) for word in (*plain.args, plain.name))

    def _python_file(self, plain: Command) -> str | None:
        if not plain.name.startswith(("python", "pypy", "uv")) and "/" not in plain.name:
            named = plain.name if plain.name.endswith(".py") else None
            words = (named,) if named else ()
        else:
            words = plain.args
        names = (self.grader.file_named(word) for word in words)
        return next((name for name in names if name in self.grader.pythons), None)

    def _broken_modules(self) -> frozenset[int]:
        """The fetches without which a test module cannot be imported."""
        modules = [n for n in self.broken if TEST_MODULE.fullmatch(n.rsplit("/", 1)[-1])]
        return frozenset(fault for name in modules for fault in self.broken[name])
