"""Under `set -e`, failing work ends the script before any reward is written."""

from collections.abc import Iterator

from plimsoll.tasks.grader.test_runners import JUDGES, is_runner
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.simulation.simulator import AssumedResult, Simulator
from plimsoll.tasks.shell.syntax import Command

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        main = graded.grader.main
        if main is None:
            continue
        for command in main.script.commands:
            if _judges(command) and _ends_without_reward(graded, command):
                name = command.unwrapped().name
                shown = "the check" if name in ("[", "[[") else f"`{name}`"
                message = f"when {shown} fails, `set -e` ends the script before a reward is written"
                yield Violation(main.file, command.line, message)
                break


def _judges(command: Command) -> bool:
    plain = command.unwrapped()
    return not plain.guarded and (plain.name in JUDGES or is_runner(plain))


def _ends_without_reward(graded: GradedStep, failing: Command) -> bool:
    """Its failure ends the script at once with no reward, its success leads to one."""

    def outcome(passes: bool) -> list[bool]:
        def assume(script: str, command: Command) -> AssumedResult | None:
            if (script, command.index) == ("test.sh", failing.index):
                return AssumedResult(passes, fetch=0)
            return AssumedResult(True) if is_runner(command) else None

        ends = Simulator(graded.grader, assume).run()
        return [end.has_reward for end in ends if 0 in end.failed and end.errexit]

    failed = outcome(False)
    return bool(failed) and not any(failed) and any(outcome(True))


RULE = Rule(
    id="reward-only-at-end-under-set-e",
    severity=Severity.ERROR,
    why=(
        "Work that fails the check is never graded 0: the script ends without a reward and the "
        "trial is void. Only successes would be counted."
    ),
    fix="Ask in an `if`, and write 0 in its `else`; `set -e` then stops only what is broken.",
    check=_check,
)
