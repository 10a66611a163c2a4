"""A 0 that no test has given: written beforehand, by a trap, or for want of a reward."""

from collections.abc import Iterator, Mapping

from plimsoll.tasks.fetches.scanner import script_env
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.simulation.state import reward_name
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

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        for write in graded.ways.writes:
            if write.before_tests and write.value == 0 and write.file:
                message = f"reward.{write.kind} is set to 0 before anything is tested"
                yield Violation(write.file, write.line, message)
        for source in graded.grader.scripts.values():
            for trap in source.script.named("trap"):
                if len(trap.args) > 1 and _trap_writes_zero(trap.args[0]):
                    message = f"a trap on {' '.join(trap.args[1:])} writes 0 however it came to it"
                    yield Violation(source.file, trap.line, message)
            for command in _for_want_of_one(source.script):
                message = "0 is written where the tests have left no reward"
                yield Violation(source.file, command.line, message)


def _trap_writes_zero(text: str) -> bool:
    return any(_is_zero(command, {}) for command in parse_script(text).commands)


def _for_want_of_one(script: Script) -> Iterator[Command]:
    """The commands that write 0 where the tests have left no reward."""
    env = script_env(script)
    for statement in statements_of(script.body):
        match statement:
            case If(branches=((Block(statements=(asked,)), then), *_)):
                pairs = ((_missing_reward(asked, env), then),)
            case AndOr(left=asked, right=right):
                absent = _missing_reward(asked, env)
                pairs = ((absent if statement.is_and else absent is False, Block((right,))),)
            case _:
                continue
        for absent, body in pairs:
            for one in statements_of(body):
                if absent and isinstance(one, Command) and _is_zero(one, env):
                    yield one


def _missing_reward(asked: Statement, env: Mapping[str, str]) -> bool | None:
    """True where it is asked whether the reward is missing, False where whether it is there."""
    if isinstance(asked, Not):
        inner = _missing_reward(asked.body, env)
        return None if inner is None else not inner
    if not isinstance(asked, Command) or asked.name not in ("[", "[[", "test"):
        return None
    words = [expand(word, env) for word in asked.args]
    negated = words[:1] == ["!"]
    match words[negated:]:
        case ["-f" | "-e" | "-s", path] if reward_name(path) is not None:
            return negated
        case _:
            return None


def _is_zero(command: Command, env: Mapping[str, str]) -> bool:
    return command.args[-1:] in (("0",), ("0.0",)) and any(
        reward_name(expand(redirect.target, env)) is not None for redirect in command.redirects
    )


RULE = Rule(
    id="reward-pre-set-to-zero",
    severity=Severity.WARNING,
    why=(
        "A grader that breaks leaves that 0 behind. It looks like failed work and is a broken "
        "grader."
    ),
    fix="Write the reward once, after the tests ran; write none when they could not.",
    check=_check,
)
