"""A step without `test.sh`."""

from collections.abc import Iterator

from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    if subject.task.environment.os == "windows":
        return
    for step in subject.task.steps:
        if step.test_script is None:
            file = (step.folder / "tests/test.sh").relative_to(subject.task.path).as_posix()
            where = f" of step {step.name}" if subject.task.is_multi_step else ""
            yield Violation(file, None, f"test.sh{where} is missing")


RULE = Rule(
    id="missing-test-script",
    severity=Severity.ERROR,
    why="tests/test.sh is what grades a trial. Without it every trial is void.",
    fix="Write tests/test.sh; it runs the tests and writes /logs/verifier/reward.txt.",
    check=_check,
)
