"""A test runner may fail and the reward is 1 all the same."""

from collections.abc import Iterator

from plimsoll.tasks.grader.test_runners import is_runner, runner_name
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.simulation.simulator import AssumedResult, Simulator
from plimsoll.tasks.shell.syntax import Command

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        for name, source in graded.grader.scripts.items():
            for command in source.script.commands:
                if is_runner(command) and _always_passes(graded, name, command):
                    message = f"{runner_name(command)} may fail and the reward is positive still"
                    yield Violation(source.file, command.line, message)


def _always_passes(graded: GradedStep, name: str, failing: Command) -> bool:
    """With this runner failing and every other passing, nothing but a positive reward follows."""
    reached = False

    def assume(script: str, command: Command) -> AssumedResult | None:
        nonlocal reached
        if (script, command.index) == (name, failing.index):
            reached = True
            return AssumedResult(False, fetch=0)
        return AssumedResult(True) if is_runner(command) else None

    ends = [end for end in Simulator(graded.grader, assume).run() if 0 in end.failed]
    return reached and bool(ends) and all((end.reward or 0) > 0 for end in ends)


RULE = Rule(
    id="exit-code-thrown-away",
    severity=Severity.ERROR,
    why="The runner's exit code does not reach the reward, so failing tests are graded as passing.",
    fix=(
        "Keep the code right after the runner (`pytest …; status=$?`), or use `set -o pipefail` "
        "or `${PIPESTATUS[0]}` where its output is piped."
    ),
    check=_check,
)
