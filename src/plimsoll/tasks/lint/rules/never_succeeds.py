"""Scripts that cannot end well: a set-up that always fails, a grader that outsleeps its time."""

import re
from collections.abc import Iterator

from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.text_files import read_text, relative_name

__all__ = ["SET_UP", "SLEEPS"]

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _check_set_up(subject: ParsedTask) -> Iterator[Violation]:
    for step in subject.task.steps:
        path = step.workdir / "setup.sh" if step.workdir is not None else None
        text = read_text(path) if path is not None else None
        if path is None or text is None:
            continue
        for command in parse_script(text).named("exit"):
            if not command.conditional:
                if re.fullmatch(r"[1-9]\d*", command.args[0] if command.args else ""):
                    message = f"setup.sh always ends with {command.args[0]}"
                    yield Violation(relative_name(path, subject.task.path), command.line, message)
                break


def _check_sleeps(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        main = graded.grader.main
        if main is None:
            continue
        limit = graded.step.verifier.timeout_sec
        for command in main.script.named("sleep"):
            seconds = sum(map(_seconds, command.args))
            if not command.conditional and not command.redirects and seconds >= limit:
                message = f"sleeps for {seconds:g} s; the verifier has {limit:g} s"
                yield Violation(main.file, command.line, message)


def _seconds(word: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smhd]?)", word)
    return float(match[1]) * UNITS[match[2]] if match else 0.0


SET_UP = Rule(
    id="set-up-always-fails",
    severity=Severity.ERROR,
    why="A set-up script that fails makes the trial void before the agent has begun.",
    fix="Let setup.sh end with 0 when it has done its work.",
    check=_check_set_up,
)
SLEEPS = Rule(
    id="grader-sleeps-past-timeout",
    severity=Severity.ERROR,
    why="The grader is ended before it writes a reward, so every trial is void.",
    fix="Wait for less, or raise `timeout_sec` in [verifier].",
    check=_check_sleeps,
)
