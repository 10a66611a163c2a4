"""What single commands and operators do to a state."""

from collections.abc import Sequence
from dataclasses import replace

from plimsoll.tasks.lint.conditions import matches
from plimsoll.tasks.lint.runners import NO_REMEDY
from plimsoll.tasks.lint.state import State, is_known
from plimsoll.tasks.lint.syntax import Assignment, Command, Group, Statement

__all__ = ["fits", "made_up", "negated", "piped", "status_of", "with_options", "with_trap"]


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
