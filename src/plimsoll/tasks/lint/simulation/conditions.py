"""Evaluation of shell conditions (`[ … ]`), as far as they can be known."""

import operator
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from plimsoll.tasks.lint.simulation.state import (
    NONZERO,
    State,
    is_known,
    reward_file_type,
)

__all__ = ["evaluate", "is_missing", "matches"]

COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
FILE_TESTS = ("-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h")


def evaluate(words: Sequence[str], state: State) -> bool | None:
    """Evaluate a test; None if it may be true or false."""
    for operators, decided in ((("||", "-o"), True), (("&&", "-a"), False)):
        at = next((i for i, word in enumerate(words) if i and word in operators), None)
        if at is not None:
            sides = (evaluate(words[:at], state), evaluate(words[at + 1 :], state))
            if decided in sides:
                return decided
            return None if None in sides else not decided
    if words and words[0] == "(" and words[-1] == ")":
        return evaluate(words[1:-1], state)
    if words and words[0] == "!":
        inner = evaluate(words[1:], state)
        return None if inner is None else not inner
    if len(words) == 3:
        return _compare(state.value(words[0]), words[1], state.value(words[2]))
    if len(words) == 2:
        return _unary(words[0], state.value(words[1]), state)
    if len(words) == 1:
        value = state.value(words[0])
        return bool(value) if is_known(value) else None
    return None


def _unary(test: str, value: str, state: State) -> bool | None:
    if test in ("-z", "-n"):
        return (test == "-n") == bool(value) if is_known(value) else None
    if test in FILE_TESTS:
        name = reward_file_type(value)
        if name is not None:
            content = state.txt if name == "txt" else state.json
            return content is not None and (test != "-s" or content != "")
        return False if is_missing(value, state) else None
    return None


def _compare(left: str, test: str, right: str) -> bool | None:
    if not (is_known(left) and is_known(right)):
        return None
    if NONZERO in (left, right):
        return _nonzero(left, test, right)
    if test in COMPARE:
        try:
            return COMPARE[test](int(left), int(right))
        except ValueError:
            return None
    if test in ("=", "=="):
        return matches(left, right)
    return not matches(left, right) if test == "!=" else None


def _nonzero(left: str, test: str, right: str) -> bool | None:
    """Compare the status of a failed command, which is only known not to be 0."""
    other = right if left == NONZERO else left
    if other != "0":
        return None
    if test in ("-eq", "=", "=="):
        return False
    return True if test in ("-ne", "!=", "-gt") else None


def matches(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern)


def is_missing(path: str, state: State) -> bool:
    """Whether a path is at or below a path that a failed fetch did not create."""
    return any(
        path == missing or path.startswith(f"{missing}/")
        for missing in state.missing
        if missing.startswith(("/", "$", "~"))
    )
