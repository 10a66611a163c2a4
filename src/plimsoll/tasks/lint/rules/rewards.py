"""Lint rules about the rewards that test scripts write."""

import difflib
import json
import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import cast

from plimsoll.tasks.fetches.scanner import script_env
from plimsoll.tasks.grader.grader import CHECKS, HOUSEKEEPING, is_runner, runner_name
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.simulation.simulator import AssumedResult, RewardWrite, Simulator
from plimsoll.tasks.lint.simulation.state import State, is_known, reward_file_type, reward_value
from plimsoll.tasks.shell.options import expand
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.shell.syntax import (
    AndOr,
    Block,
    Command,
    If,
    Not,
    Script,
    Statement,
    statements_of,
)
from plimsoll.tasks.text_files import MAX_FILES, read_text

__all__ = [
    "EXIT_CODE_THROWN_AWAY",
    "INVALID_REWARD",
    "MISSPELT_REWARD_FILE",
    "NEGATIVE_REWARD",
    "NO_REWARD",
    "REWARD_ONLY_AT_END",
    "REWARD_PRE_SET",
]

REWARD_FILES = ("reward.txt", "reward.json")
REPORT_FILES = ("ctrf.json", "ctrf.xml")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
BUILTINS = {"exit", "return", "set", "source", ".", "break", "continue", "local", "trap", "if"}


def _location_of(writes: tuple[RewardWrite, ...], kind: str, text: str) -> tuple[str, int] | None:
    found = next((w for w in writes if w.kind == kind and w.text == text and w.file), None)
    return (found.file, found.line) if found is not None else None


# Invalid rewards


def _check_invalid(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        ends, writes = graded.outcomes.ends, graded.outcomes.writes
        low, high = parsed.task.reward_range
        seen: set[tuple[str, str]] = set()
        for end in ends:
            for kind, text in (("txt", end.txt), ("json", end.json)):
                if text is None or not is_known(text) or (kind, text) in seen:
                    continue
                seen.add((kind, text))
                problem = _problem(kind, text, low, high)
                everywhere = all(getattr(other, kind) == text for other in ends)
                location = _location_of(writes, kind, text)
                if problem and location and (text or everywhere):
                    yield Violation(*location, f"reward.{kind} {problem}")
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
    # Values below the range have their own rule.
    return f"is written as {value:g}, beyond {low:g} to {high:g}" if value > high else None


def _differing(ends: tuple[State, ...], writes: tuple[RewardWrite, ...]) -> Iterator[Violation]:
    for end in ends:
        first, second = reward_value(end.txt, None), reward_value(None, end.json)
        if first is None or second is None or math.isclose(first, second, abs_tol=1e-9):
            continue
        location = _location_of(writes, "json", end.json or "")
        if location is not None:
            message = f"reward.json has {second:g}, but reward.txt has {first:g}"
            yield Violation(*location, message)
            return


def _check_negative(parsed: ParsedTask) -> Iterator[Violation]:
    low, _ = parsed.task.reward_range
    for graded in parsed.steps:
        for write in graded.outcomes.writes:
            value = write.value
            if value is not None and value < low and write.file:
                message = f"reward.{write.kind} is written as {value:g}, below {low:g}"
                yield Violation(write.file, write.line, message)


# Missing rewards


def _check_misspelt(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        if any(end.has_reward for end in graded.outcomes.ends):
            continue
        for source in graded.grader.scripts.values():
            for command in source.script.commands:
                plain = command.unwrapped()
                targets = [r.target for r in plain.redirects if r.operator.endswith(">")]
                targets += plain.args if plain.name in ("tee", "cp", "mv", "touch") else ()
                for target in targets:
                    if intended := _intended_name(target):
                        message = f"{target} is written; {intended} is read"
                        yield Violation(source.file, plain.line, message)
        for source in graded.grader.pythons.values():
            for text, line in source.constants:
                if not source.writes_reward and (intended := _intended_name(text)):
                    yield Violation(source.file, line, f"{text} is written; {intended} is read")


def _intended_name(path: str) -> str | None:
    name = posixpath.basename(path)
    if not path.startswith("/logs/verifier/") or name in (*REWARD_FILES, *REPORT_FILES):
        return None
    close = difflib.get_close_matches(name.lower(), REWARD_FILES, n=1, cutoff=0.8)
    return close[0] if close else None


def _check_no_reward(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        main = graded.grader.main
        if main is None or _mentions_reward(graded):
            continue
        understood = HOUSEKEEPING | CHECKS | BUILTINS
        names = {function.name for function in main.script.functions}
        elsewhere = any(
            command.unwrapped().name not in understood | names and not is_runner(command)
            for command in main.script.commands
        )
        severity = Severity.WARNING if elsewhere else Severity.ERROR
        yield Violation(main.file, None, "no file of the tests writes a reward", severity)


def _mentions_reward(graded: GradedStep) -> bool:
    if any(end.has_reward for end in graded.outcomes.ends):
        return True
    files = graded.grader.files.values()
    if len(files) > MAX_FILES:
        return True  # too many to read
    texts = (read_text(path) for path in files)
    return any("reward" in text or "/logs/verifier" in text for text in texts if text)


INVALID_REWARD = Rule(
    id="invalid-reward",
    severity=Severity.ERROR,
    why="The file does not contain a valid reward, so every such trial is void.",
    fix=(
        "Write one number to reward.txt, or an object of numbers to reward.json. Declare a range "
        "other than 0 to 1 as `reward_range = [low, high]` in [metadata]."
    ),
    check=_check_invalid,
)
NEGATIVE_REWARD = Rule(
    id="negative-reward",
    severity=Severity.ERROR,
    why="A sentinel such as -1 does not measure the work, but the policy is trained on it.",
    fix=(
        "Write no reward if grading failed. If rewards below 0 are intended, declare the range: "
        "`reward_range = [-1, 1]` in [metadata]."
    ),
    check=_check_negative,
)
MISSPELT_REWARD_FILE = Rule(
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


def _check_pre_set(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        for write in graded.outcomes.writes:
            if write.before_tests and write.value == 0 and write.file:
                message = f"reward.{write.kind} is set to 0 before anything is tested"
                yield Violation(write.file, write.line, message)
        for source in graded.grader.scripts.values():
            for trap in source.script.named("trap"):
                if len(trap.args) > 1 and _trap_writes_zero(trap.args[0]):
                    message = f"a trap on {' '.join(trap.args[1:])} writes 0 whatever its cause"
                    yield Violation(source.file, trap.line, message)
            for command in _default_zeros(source.script):
                message = "0 is written if the tests wrote no reward"
                yield Violation(source.file, command.line, message)


def _trap_writes_zero(text: str) -> bool:
    return any(_writes_zero(command, {}) for command in parse_script(text).commands)


def _default_zeros(script: Script) -> Iterator[Command]:
    """Yield the commands that write 0 if the tests wrote no reward."""
    env = script_env(script)
    for statement in statements_of(script.body):
        match statement:
            case If(branches=((Block(statements=(condition,)), then), *_)):
                pairs = ((_tests_missing_reward(condition, env), then),)
            case AndOr(left=condition, right=right):
                absent = _tests_missing_reward(condition, env)
                pairs = ((absent if statement.is_and else absent is False, Block((right,))),)
            case _:
                continue
        for absent, body in pairs:
            for one in statements_of(body):
                if absent and isinstance(one, Command) and _writes_zero(one, env):
                    yield one


def _tests_missing_reward(condition: Statement, env: Mapping[str, str]) -> bool | None:
    """Return True for a test that the reward is missing, False for one that it exists."""
    if isinstance(condition, Not):
        inner = _tests_missing_reward(condition.body, env)
        return None if inner is None else not inner
    if not isinstance(condition, Command) or condition.name not in ("[", "[[", "test"):
        return None
    words = [expand(word, env) for word in condition.args]
    negated = words[:1] == ["!"]
    match words[negated:]:
        case ["-f" | "-e" | "-s", path] if reward_file_type(path) is not None:
            return negated
        case _:
            return None


def _writes_zero(command: Command, env: Mapping[str, str]) -> bool:
    return command.args[-1:] in (("0",), ("0.0",)) and any(
        reward_file_type(expand(redirect.target, env)) is not None for redirect in command.redirects
    )


REWARD_PRE_SET = Rule(
    id="reward-pre-set-to-zero",
    severity=Severity.WARNING,
    why=(
        "If the grader breaks, this 0 remains. It looks like failed work, but the grader is broken."
    ),
    fix="Write the reward once, after the tests ran; write none if they could not run.",
    check=_check_pre_set,
)


def _check_only_at_end(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        main = graded.grader.main
        if main is None:
            continue
        for command in main.script.commands:
            if _is_unguarded_check(command) and _ends_without_reward(graded, command):
                name = command.unwrapped().name
                shown = "the check" if name in ("[", "[[") else f"`{name}`"
                message = f"when {shown} fails, `set -e` ends the script before a reward is written"
                yield Violation(main.file, command.line, message)
                break


def _is_unguarded_check(command: Command) -> bool:
    plain = command.unwrapped()
    return not plain.guarded and (plain.name in CHECKS or is_runner(plain))


def _ends_without_reward(graded: GradedStep, failing: Command) -> bool:
    """Whether a failure ends the script without a reward, and a success leads to one."""

    def outcome(passes: bool) -> list[bool]:
        def assume(script: str, command: Command) -> AssumedResult | None:
            if (script, command.index) == ("test.sh", failing.index):
                return AssumedResult(passes, fetch=0)
            return AssumedResult(True) if is_runner(command) else None

        ends = Simulator(graded.grader, assume).run()
        return [end.has_reward for end in ends if 0 in end.failed and end.errexit]

    failed = outcome(False)
    return bool(failed) and not any(failed) and any(outcome(True))


REWARD_ONLY_AT_END = Rule(
    id="reward-only-at-end-under-set-e",
    severity=Severity.ERROR,
    why=(
        "Work that fails the check is never graded 0: the script ends without a reward and the "
        "trial is void. Only successes would be counted."
    ),
    fix="Use the check as the condition of an `if`, and write 0 in its `else`.",
    check=_check_only_at_end,
)


def _check_exit_code(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        for name, source in graded.grader.scripts.items():
            for command in source.script.commands:
                if is_runner(command) and _always_passes(graded, name, command):
                    message = f"{runner_name(command)} may fail and the reward is still positive"
                    yield Violation(source.file, command.line, message)


def _always_passes(graded: GradedStep, name: str, failing: Command) -> bool:
    """Whether every reward is positive if this runner fails and all others pass."""
    reached = False

    def assume(script: str, command: Command) -> AssumedResult | None:
        nonlocal reached
        if (script, command.index) == (name, failing.index):
            reached = True
            return AssumedResult(False, fetch=0)
        return AssumedResult(True) if is_runner(command) else None

    ends = [end for end in Simulator(graded.grader, assume).run() if 0 in end.failed]
    return reached and bool(ends) and all((end.reward or 0) > 0 for end in ends)


EXIT_CODE_THROWN_AWAY = Rule(
    id="exit-code-thrown-away",
    severity=Severity.ERROR,
    why="The runner's exit code does not reach the reward, so failing tests are graded as passing.",
    fix=(
        "Save the exit code right after the runner (`pytest …; status=$?`), or use `set -o "
        "pipefail` or `${PIPESTATUS[0]}` if its output is piped."
    ),
    check=_check_exit_code,
)
