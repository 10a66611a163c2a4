"""What a script writes as a reward, where it can be read from the script."""

import difflib
import json
import math
import posixpath
import re
from collections.abc import Iterator
from typing import cast

from plimsoll.tasks.grader.test_runners import HOUSEKEEPING, JUDGES, is_runner
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.simulation.simulator import RewardWrite
from plimsoll.tasks.lint.simulation.state import State, is_known, reward_value
from plimsoll.tasks.text_files import read_text

__all__ = ["INVALID", "MISSPELT", "NEGATIVE", "NO_REWARD"]

NAMES = ("reward.txt", "reward.json")
OTHERS = ("ctrf.json", "ctrf.xml")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
BUILTINS = {"exit", "return", "set", "source", ".", "break", "continue", "local", "trap", "if"}


def _line(writes: tuple[RewardWrite, ...], kind: str, text: str) -> tuple[str, int] | None:
    found = next((w for w in writes if w.kind == kind and w.text == text and w.file), None)
    return (found.file, found.line) if found is not None else None


# Rewards that are no rewards


def _check_invalid(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        ends, writes = graded.ways.ends, graded.ways.writes
        low, high = subject.task.reward_range
        said: set[tuple[str, str]] = set()
        for end in ends:
            for kind, text in (("txt", end.txt), ("json", end.json)):
                if text is None or not is_known(text) or (kind, text) in said:
                    continue
                said.add((kind, text))
                problem = _problem(kind, text, low, high)
                everywhere = all(getattr(other, kind) == text for other in ends)
                place = _line(writes, kind, text)
                if problem and place and (text or everywhere):
                    yield Violation(*place, f"reward.{kind} {problem}")
        yield from _differing(ends, writes)


def _problem(kind: str, text: str, low: float, high: float) -> str | None:
    if not text:
        return "is left empty"
    if kind == "txt":
        if not NUMBER.fullmatch(text):
            return f"is written as {text[:40]!r}, which is not a number"
        return _out_of_range(float(text), low, high)
    try:
        found: object = json.loads(text)
    except ValueError:
        return "is written as something that is not JSON"
    if not isinstance(found, dict) or not found:
        return f"is written as {text[:40]}, which is not an object of numbers"
    for name, value in cast(dict[str, object], found).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"gives {name} as {json.dumps(value)[:40]}, which is not a number"
    value = reward_value(None, text)
    return _out_of_range(value, low, high) if value is not None else None


def _out_of_range(value: float, low: float, high: float) -> str | None:
    if not math.isfinite(value):
        return "is written as a number that is not finite"
    # What is below has a rule of its own.
    return f"is written as {value:g}, beyond {low:g} to {high:g}" if value > high else None


def _differing(ends: tuple[State, ...], writes: tuple[RewardWrite, ...]) -> Iterator[Violation]:
    for end in ends:
        first, second = reward_value(end.txt, None), reward_value(None, end.json)
        if first is None or second is None or math.isclose(first, second, abs_tol=1e-9):
            continue
        place = _line(writes, "json", end.json or "")
        if place is not None:
            message = f"reward.json says {second:g} where reward.txt says {first:g}"
            yield Violation(*place, message)
            return


def _check_negative(subject: ParsedTask) -> Iterator[Violation]:
    low, _ = subject.task.reward_range
    for graded in subject.steps:
        for write in graded.ways.writes:
            value = write.value
            if value is not None and value < low and write.file:
                message = f"reward.{write.kind} is written as {value:g}, below {low:g}"
                yield Violation(write.file, write.line, message)


# Rewards that are nowhere


def _check_misspelt(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        if any(end.has_reward for end in graded.ways.ends):
            continue
        for source in graded.grader.scripts.values():
            for command in source.script.commands:
                plain = command.unwrapped()
                targets = [r.target for r in plain.redirects if r.operator.endswith(">")]
                targets += plain.args if plain.name in ("tee", "cp", "mv", "touch") else ()
                for target in targets:
                    if meant := _meant(target):
                        message = f"{target} is written; {meant} is read"
                        yield Violation(source.file, plain.line, message)
        for source in graded.grader.pythons.values():
            for text, line in source.constants:
                if not source.writes_reward and (meant := _meant(text)):
                    yield Violation(source.file, line, f"{text} is written; {meant} is read")


def _meant(path: str) -> str | None:
    name = posixpath.basename(path)
    if not path.startswith("/logs/verifier/") or name in (*NAMES, *OTHERS):
        return None
    close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.8)
    return close[0] if close else None


def _check_no_reward(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        main = graded.grader.main
        if main is None or _speaks_of_reward(graded):
            continue
        known = HOUSEKEEPING | JUDGES | BUILTINS
        names = {function.name for function in main.script.functions}
        elsewhere = any(
            command.unwrapped().name not in known | names and not is_runner(command)
            for command in main.script.commands
        )
        severity = Severity.WARNING if elsewhere else Severity.ERROR
        yield Violation(main.file, None, "no file of the tests writes a reward", severity)


def _speaks_of_reward(graded: GradedStep) -> bool:
    if any(end.has_reward for end in graded.ways.ends):
        return True
    texts = (read_text(path) for path in graded.grader.files.values())
    return any("reward" in text or "/logs/verifier" in text for text in texts if text)


INVALID = Rule(
    id="invalid-reward",
    severity=Severity.ERROR,
    why="What is written is not a reward, so the trial is void however good the work is.",
    fix=(
        "Write one number to reward.txt, or an object of numbers to reward.json. Declare a range "
        "other than 0 to 1 as `reward_range = [low, high]` in [metadata]."
    ),
    check=_check_invalid,
)
NEGATIVE = Rule(
    id="negative-reward",
    severity=Severity.ERROR,
    why="A sentinel such as -1 is not a measure of the work; averaged into a batch it teaches.",
    fix=(
        "Write no reward when grading did not work. If the range does go below 0, declare it: "
        "`reward_range = [-1, 1]` in [metadata]."
    ),
    check=_check_negative,
)
MISSPELT = Rule(
    id="misspelt-reward-file",
    severity=Severity.ERROR,
    why="Only reward.json and reward.txt are read, so every trial is void.",
    fix="Write /logs/verifier/reward.txt (one number) or reward.json (an object of numbers).",
    check=_check_misspelt,
)
NO_REWARD = Rule(
    id="no-reward-written",
    severity=Severity.ERROR,
    why="A trial without a reward file is void.",
    fix="Let test.sh write /logs/verifier/reward.txt: 1 when the tests pass, 0 when they fail.",
    check=_check_no_reward,
)
