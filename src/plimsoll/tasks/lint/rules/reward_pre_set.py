"""A 0 that is written before anything was tested, or by a trap."""

from collections.abc import Iterator

from plimsoll.tasks.lint.finding import Severity
from plimsoll.tasks.lint.rule import Place, Rule
from plimsoll.tasks.lint.shell import parse_script
from plimsoll.tasks.lint.state import reward_name
from plimsoll.tasks.lint.subject import Subject

__all__ = ["RULE"]


def _check(subject: Subject) -> Iterator[Place]:
    for graded in subject.steps:
        for write in graded.ways.writes:
            if write.before_tests and write.value == 0 and write.file:
                message = f"reward.{write.kind} is set to 0 before anything is tested"
                yield Place(write.file, write.line, message)
        for source in graded.grader.scripts.values():
            for trap in source.script.named("trap"):
                if len(trap.args) > 1 and _writes_zero(trap.args[0]):
                    message = f"a trap on {' '.join(trap.args[1:])} writes 0 however it came to it"
                    yield Place(source.file, trap.line, message)


def _writes_zero(text: str) -> bool:
    return any(
        reward_name(redirect.target) is not None and command.args[-1:] in (("0",), ("0.0",))
        for command in parse_script(text).commands
        for redirect in command.redirects
    )


RULE = Rule(
    id="reward-pre-set-to-zero",
    severity=Severity.WARNING,
    why=(
        "A grader that breaks afterwards leaves that 0 behind. It looks like failed work and is "
        "a broken grader."
    ),
    fix="Write the reward once, after the tests ran; write none when they could not.",
    check=_check,
)
