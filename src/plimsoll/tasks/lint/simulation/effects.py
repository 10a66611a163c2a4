"""What single commands and operators do to a state.

What a command prints, where its words tell.

What becomes of the programs that a script runs, as far as their names and words tell.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plimsoll.tasks.grader.grader import TEST_MODULE, Grader
from plimsoll.tasks.grader.test_runners import (
    HOUSEKEEPING,
    JUDGES,
    NO_REMEDY,
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
    "fits",
    "made_up",
    "negated",
    "piped",
    "printed",
    "status_of",
    "with_options",
    "with_trap",
]


def negated(state: State) -> State:
    """What `!` makes of a status."""
    return replace(state, status=None if state.status is None else not state.status)


def piped(seen: tuple[bool | None, ...], state: State) -> bool | None:
    """The last part counts; with `pipefail` each of them."""
    if not state.pipefail:
        return seen[-1] if seen else True
    return False if False in seen else (None if None in seen else True)


def made_up(end: State, before: State, news: frozenset[int], remedy: Sequence[Statement]) -> State:
    """A fetch that failed is made up for where something else is done in its stead."""
    same = (end.txt, end.json) == (before.txt, before.json)
    if not news or end.flow or not same or end.status is False or not _does_something(remedy):
        return end
    return replace(end, failed=end.failed - news, missing=frozenset())


def _does_something(statements: Sequence[Statement]) -> bool:
    return any(
        not isinstance(one, Command) or one.unwrapped().name not in NO_REMEDY
        for statement in statements
        for one in (statement.body.statements if isinstance(statement, Group) else (statement,))
        if not isinstance(one, Assignment)
    )


def status_of(word: str, state: State) -> bool | None:
    """The status that `exit word` ends with."""
    value = state.value(word)
    return value == "0" if is_known(value) else None


def with_options(args: Sequence[str], state: State) -> State:
    """After `set` with these words."""
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
    """After `trap` with these words."""
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


def fits(subject: str, patterns: Sequence[str]) -> bool | None:
    """Whether a `case` takes one of these patterns."""
    if not is_known(subject):
        return None if "*" not in patterns else True
    return any(matches(subject, pattern) for pattern in patterns)


ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def printed(plain: Command) -> str:
    """The output of `echo`, `printf`, `cat <<END` and of what prints nothing at all."""
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
