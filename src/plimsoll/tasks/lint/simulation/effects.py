"""Effects of single commands and operators on the state of a simulated script.

Programs are not run: their effects follow from their names and arguments, as far as known.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plimsoll.tasks.grader.grader import (
    CHECKS,
    HOUSEKEEPING,
    NO_COMPENSATION,
    TEST_MODULE,
    Grader,
    is_runner,
    python_module,
)
from plimsoll.tasks.lint.simulation.conditions import is_missing, matches
from plimsoll.tasks.lint.simulation.state import UNKNOWN, State, is_known
from plimsoll.tasks.shell.syntax import (
    Assignment,
    Command,
    Group,
    Statement,
)

__all__ = [
    "Programs",
    "compensate",
    "matches_case",
    "negated",
    "output_of",
    "pipeline_status",
    "status_of",
    "with_options",
    "with_trap",
]


def negated(state: State) -> State:
    """Apply `!` to the status."""
    return replace(state, status=None if state.status is None else not state.status)


def pipeline_status(seen: tuple[bool | None, ...], state: State) -> bool | None:
    """Return the status of a pipeline: of its last part, or with `pipefail` of all parts."""
    if not state.pipefail:
        return seen[-1] if seen else True
    return False if False in seen else (None if None in seen else True)


def compensate(
    end: State, before: State, new_failures: frozenset[int], replacement: Sequence[Statement]
) -> State:
    """Clear failed fetches for which the script does something else instead."""
    same = (end.txt, end.json) == (before.txt, before.json)
    if (
        not new_failures
        or end.flow
        or not same
        or end.status is False
        or not _compensates(replacement)
    ):
        return end
    return replace(end, failed=end.failed - new_failures, missing=frozenset())


def _compensates(statements: Sequence[Statement]) -> bool:
    return any(
        not isinstance(one, Command) or one.unwrapped().name not in NO_COMPENSATION
        for statement in statements
        for one in (statement.body.statements if isinstance(statement, Group) else (statement,))
        if not isinstance(one, Assignment)
    )


def status_of(word: str, state: State) -> bool | None:
    """Return the status of `exit word`."""
    value = state.value(word)
    return value == "0" if is_known(value) else None


def with_options(args: Sequence[str], state: State) -> State:
    """Apply `set` with these arguments."""
    for at, arg in enumerate(args):
        on = arg.startswith("-")
        if arg in ("-o", "+o") or (arg[:1] in "-+" and arg.endswith("o")):
            option = args[at + 1] if at + 1 < len(args) else ""
            if option == "pipefail":
                state = replace(state, pipefail=on)
            elif option == "errexit":
                state = replace(state, errexit=on)
        if arg[:1] in ("-", "+") and "e" in arg[1:] and not arg.startswith("--"):
            state = replace(state, errexit=on)
    return replace(state, status=True)


def with_trap(args: Sequence[str], state: State) -> State:
    """Apply `trap` with these arguments."""
    words = [arg for arg in args if arg != "--"]
    if len(words) < 2:
        return state
    text, *names = words
    named = {"0": "EXIT"}
    traps = dict(state.traps)
    for name in names:
        name = named.get(name, name.removeprefix("SIG"))
        if text in ("-", ""):
            traps.pop(name, None)
        else:
            traps[name] = text
    return replace(state, traps=tuple(sorted(traps.items())), status=True)


def matches_case(subject: str, patterns: Sequence[str]) -> bool | None:
    """Whether the subject of a `case` matches one of these patterns; None if unknown."""
    if not is_known(subject):
        return None if "*" not in patterns else True
    return any(matches(subject, pattern) for pattern in patterns)


ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def output_of(plain: Command) -> str:
    """Return the output of `echo`, `printf`, `cat <<END`, `:` and `true`; else `UNKNOWN`."""
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


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of an image and the Python files of a grader."""

    grader: Grader
    installed: frozenset[str]
    """Programs known to be in the image."""
    broken: Mapping[str, frozenset[int]]
    """Python files of the tests that cannot run, with the failed fetches that they need."""

    def is_available(self, name: str, state: State) -> bool | None:
        """Return the result of `command -v`; None if unknown."""
        if name in state.missing:
            return False
        return True if name in self.installed else None

    def run(self, plain: Command, state: State) -> State:
        """Return the state after a program of which only name and arguments are known."""
        tests = plain.name in CHECKS or is_runner(plain)
        state = replace(state, tested=state.tested or tests)
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
        elif is_runner(plain) and (fetches := self._broken_modules()):
            return replace(state, status=False, failed=state.failed | fetches)
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
        """Return the failed fetches that test modules need to be imported."""
        modules = [n for n in self.broken if TEST_MODULE.fullmatch(n.rsplit("/", 1)[-1])]
        return frozenset(fetch for name in modules for fetch in self.broken[name])
