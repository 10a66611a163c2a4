"""What fetches do to a grade where there is no network; shared by the rules about them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.tasks.fetches.fetch import Fetch, Kind
from plimsoll.tasks.fetches.scanner import FoundFetch
from plimsoll.tasks.lint.image_contents import programs_of
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.simulation.simulator import AssumedResult, Simulator
from plimsoll.tasks.lint.simulation.state import State
from plimsoll.tasks.shell.syntax import Command

__all__ = ["Effect", "Failing", "described", "failing_tests", "grade_without"]

UV_FILES = tuple(f"{home}/.local/bin/env" for home in ("$HOME", "${HOME}", "~", "/root"))


class Effect(StrEnum):
    """What comes of a fetch that fails."""

    ZERO = "zero"
    """The script goes on and writes 0."""
    LOUD = "loud"
    """The script stops, or no reward follows from it."""
    NONE = "none"
    """It is never reached, or made up for."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A fetch that cannot succeed, with what it does to the grade."""

    fetch: Fetch
    effect: Effect


def failing_tests(subject: ParsedTask, graded: GradedStep) -> list[Failing]:
    """The fetches of a step's tests that have no network, each with its effect."""
    network = graded.step.verifier_network
    found = [one for one in graded.fetches if subject.fails(one.fetch, network, graded.image)]
    if not found:
        return []
    names = {source.file: name for name, source in graded.grader.scripts.items()}
    pythons = {source.file: name for name, source in graded.grader.pythons.items()}
    commands = {
        (names[one.fetch.file], one.command.index): number
        for number, one in enumerate(found)
        if one.command is not None and one.fetch.file in names
    }
    broken: dict[str, frozenset[int]] = {}
    for number, one in enumerate(found):
        if one.command is None and one.fetch.file in pythons:
            name = pythons[one.fetch.file]
            broken[name] = broken.get(name, frozenset()) | {number}
    ends = _simulate(graded, found, commands, broken, State())
    effects = [_effect(number, one, ends) for number, one in enumerate(found)]
    for number, one in enumerate(found):
        if effects[number] is Effect.NONE:
            # An earlier fetch may have ended the script; once it works this one is met.
            alone = {name: numbers for name, numbers in broken.items() if number in numbers}
            ends = _simulate(graded, found, commands, alone, State(), only=number)
            effects[number] = _effect(number, one, ends)
    return [Failing(one.fetch, effect) for one, effect in zip(found, effects, strict=True)]


def grade_without(graded: GradedStep, fetch: Fetch) -> Effect:
    """What the tests make of it when an earlier fetch has left its target empty."""
    if fetch.target is None:
        return Effect.NONE
    target = fetch.target
    pythons = graded.grader.pythons
    broken = {n: frozenset({0}) for n, source in pythons.items() if source.mentions(target)}
    used = broken or any(
        word == target or word.startswith(f"{target}/")
        for source in graded.grader.scripts.values()
        for command in source.script.commands
        for word in (command.name, *command.args, *(a.value for a in command.assignments))
    )
    if not used:
        return Effect.NONE
    start = State(failed=frozenset({0}), missing=frozenset({target}))
    ends = _simulate(graded, (), {}, broken, start)
    return Effect.ZERO if any(end.reward == 0 for end in ends) else Effect.LOUD


def _simulate(
    graded: GradedStep,
    found: Sequence[FoundFetch],
    commands: Mapping[tuple[str, int], int],
    broken: Mapping[str, frozenset[int]],
    start: State,
    only: int | None = None,
) -> tuple[State, ...]:
    """Run the tests with every fetch failing, or only one of them."""
    image = graded.image

    def assume(script: str, command: Command) -> AssumedResult | None:
        number = commands.get((script, command.index))
        if number is None:
            return None
        if only not in (None, number):
            return AssumedResult(True)
        fetch = found[number].fetch
        return AssumedResult(False, number, frozenset(_left_out(fetch) - image.programs))

    return Simulator(graded.grader, assume, frozenset(image.programs), broken).run(start)


def _left_out(fetch: Fetch) -> set[str]:
    """The programs and paths that are not there because of a failed fetch."""
    paths = {fetch.target} if fetch.target else set[str]()
    if fetch.kind is Kind.UV_TOOL:
        paths |= set(UV_FILES)
    return programs_of(fetch) | paths


def _effect(number: int, found: FoundFetch, ends: Iterable[State]) -> Effect:
    reached = [end for end in ends if number in end.failed]
    if not reached:
        return Effect.NONE
    zero = any(end.reward == 0 for end in reached)
    other = any(end.reward != 0 and end.has_reward for end in reached)
    # `|| true` says that the grader can do without; then it must not be all that it can do.
    if zero and not (found.fetch.guarded and other):
        return Effect.ZERO
    return Effect.LOUD


def described(fetch: Fetch) -> str:
    """A fetch in few words: `git clone https://…`."""
    action = {
        "apt-get": "apt-get install",
        "git": "git clone" if fetch.target else "git fetch",
        "npm": "npm install",
        "pip": "pip install",
        "python": "a request to",
        "uv": "uv pip install",
    }.get(fetch.tool, fetch.tool)
    what = " ".join(fetch.what[:3]) + (" …" if len(fetch.what) > 3 else "")
    return f"`{action} {what}`" if what else f"`{action}`"
