"""Lint rules about network fetches that cannot succeed where the task runs."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from plimsoll.tasks.fetches.fetch import Fetch, Kind
from plimsoll.tasks.fetches.scanner import FoundFetch
from plimsoll.tasks.lint.image_contents import programs_of
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.simulation.effects import with_options
from plimsoll.tasks.lint.simulation.simulator import AssumedResult, Simulator
from plimsoll.tasks.lint.simulation.state import State
from plimsoll.tasks.shell.parser import SHELLS
from plimsoll.tasks.shell.syntax import Command, Script

__all__ = [
    "CLONE_AT_BUILD",
    "FETCH_THEN_ZERO",
    "FETCH_WITHOUT_NETWORK",
    "PIPE_TO_SHELL",
    "SOURCE_OF_FETCHED_FILE",
]

UV_ENV_FILES = tuple(f"{home}/.local/bin/env" for home in ("$HOME", "${HOME}", "~", "/root"))


class Effect(StrEnum):
    """Effect of a failed fetch on the grade."""

    ZERO = "zero"
    """The script continues and writes 0."""
    VOID = "void"
    """The script stops, or writes no reward because of it."""
    NONE = "none"
    """The fetch is never reached, or the script compensates for it."""


@dataclass(frozen=True, slots=True)
class FailingFetch:
    """A fetch that cannot succeed, with its effect on the grade."""

    fetch: Fetch
    effect: Effect


def failing_fetches(parsed: ParsedTask, graded: GradedStep) -> list[FailingFetch]:
    """Return the fetches of a step's tests that cannot succeed, with their effects."""
    network = graded.step.verifier_network
    found = [one for one in graded.fetches if parsed.fails(one.fetch, network, graded.image)]
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
            # An earlier failed fetch may have ended the script before this one.
            alone = {name: numbers for name, numbers in broken.items() if number in numbers}
            ends = _simulate(graded, found, commands, alone, State(), only=number)
            effects[number] = _effect(number, one, ends)
    return [FailingFetch(one.fetch, effect) for one, effect in zip(found, effects, strict=True)]


def effect_of_missing(graded: GradedStep, fetch: Fetch) -> Effect:
    """Return the effect on the tests of a failed fetch in an earlier phase."""
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
    return Effect.ZERO if any(end.reward == 0 for end in ends) else Effect.VOID


def _simulate(
    graded: GradedStep,
    found: Sequence[FoundFetch],
    commands: Mapping[tuple[str, int], int],
    broken: Mapping[str, frozenset[int]],
    start: State,
    only: int | None = None,
) -> tuple[State, ...]:
    """Simulate the tests with all fetches failing, or only one of them."""
    image = graded.image

    def assume(script: str, command: Command) -> AssumedResult | None:
        number = commands.get((script, command.index))
        if number is None:
            return None
        if only not in (None, number):
            return AssumedResult(True)
        fetch = found[number].fetch
        return AssumedResult(False, number, frozenset(_missing_after(fetch) - image.programs))

    return Simulator(graded.grader, assume, frozenset(image.programs), broken).run(start)


def _missing_after(fetch: Fetch) -> set[str]:
    """Return the programs and paths that a failed fetch does not create."""
    paths = {fetch.target} if fetch.target else set[str]()
    if fetch.kind is Kind.UV_TOOL:
        paths |= set(UV_ENV_FILES)
    return programs_of(fetch) | paths


def _effect(number: int, found: FoundFetch, ends: Iterable[State]) -> Effect:
    reached = [end for end in ends if number in end.failed]
    if not reached:
        return Effect.NONE
    zero = any(end.reward == 0 for end in reached)
    other = any(end.reward != 0 and end.has_reward for end in reached)
    # After `|| true` a 0 counts only if no other reward is possible.
    if zero and not (found.fetch.guarded and other):
        return Effect.ZERO
    return Effect.VOID


def describe_fetch(fetch: Fetch) -> str:
    """Describe a fetch in short: `git clone https://…`."""
    action = {
        "apt-get": "apt-get install",
        "git": "git clone" if fetch.target else "git fetch",
        "npm": "npm install",
        "pip": "pip install",
        "python": "a request to",
        "uv": "uv pip install" if fetch.what else "uv sync",
    }.get(fetch.tool, fetch.tool)
    what = " ".join(fetch.what[:3]) + (" …" if len(fetch.what) > 3 else "")
    return f"`{action} {what}`" if what else f"`{action}`"


def _check_then_zero(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        for failing in failing_fetches(parsed, graded):
            if failing.effect is Effect.ZERO:
                fetch = failing.fetch
                message = f"{describe_fetch(fetch)} has no network here; the grader then writes 0"
                yield Violation(fetch.file, fetch.line, message)
    for graded in parsed.steps:
        earlier = [
            (one.fetch, "the build")
            for one in parsed.build_fetches
            if one.fetch.kind is not Kind.GIT and parsed.fails(one.fetch)
        ]
        earlier += [
            (one.fetch, "set-up")
            for one in parsed.set_up_fetches(graded.step)
            if parsed.fails(one.fetch, parsed.task.network, parsed.image)
        ]
        for fetch, phase in earlier:
            if effect_of_missing(graded, fetch) is Effect.ZERO:
                message = (
                    f"{describe_fetch(fetch)} has no network in {phase}; without {fetch.target}"
                )
                yield Violation(fetch.file, fetch.line, f"{message} the grader writes 0")


FETCH_THEN_ZERO = Rule(
    id="fetch-then-zero",
    severity=Severity.ERROR,
    why=(
        "The fetch always fails where the task runs, and the script continues to a branch that "
        "writes 0. Every reward would be 0 whatever the agent did."
    ),
    fix=(
        "Stage the fetched content (plimsoll stage PATH --to DIR, then --assets DIR), install it "
        "in the Dockerfile, or let the grader end without a reward when the fetch fails."
    ),
    check=_check_then_zero,
)


def _check_clone(parsed: ParsedTask) -> Iterator[Violation]:
    for found in parsed.build_fetches:
        fetch = found.fetch
        if fetch.kind is not Kind.GIT or not parsed.fails(fetch):
            continue
        message = f"{describe_fetch(fetch)} in the build has no network here"
        if any(effect_of_missing(graded, fetch) is Effect.ZERO for graded in parsed.steps):
            message += f"; the grader needs {fetch.target} and writes 0 without it"
            yield Violation(fetch.file, fetch.line, message, Severity.ERROR)
        else:
            yield Violation(fetch.file, fetch.line, message)


CLONE_AT_BUILD = Rule(
    id="clone-at-build",
    severity=Severity.WARNING,
    why=(
        "If the image is built without a network, the clone fails and its folder is empty. A "
        "grader that needs files of that folder, and writes 0 without them, grades every trial 0."
    ),
    fix=(
        "Stage the repository at its pinned commit (plimsoll stage PATH --to DIR) and run with "
        "--assets DIR: it is mounted at the path that the task clones to."
    ),
    check=_check_clone,
)


def _check_without_network(parsed: ParsedTask) -> Iterator[Violation]:
    for found in parsed.build_fetches:
        # Clones have their own rule.
        if found.fetch.kind is not Kind.GIT and parsed.fails(found.fetch):
            yield from _void_fetches(parsed, found, "the build")
    for graded in parsed.steps:
        step = graded.step
        for found in parsed.set_up_fetches(step):
            if parsed.fails(found.fetch, parsed.task.network, parsed.image):
                yield from _void_fetches(parsed, found, "set-up")
        for found in parsed.agent_fetches(step):
            if parsed.fails(found.fetch, step.agent_network, parsed.image):
                yield _no_network(found, "the solution")
        for failing in failing_fetches(parsed, graded):
            if failing.effect is Effect.VOID:
                yield _no_network(FoundFetch(failing.fetch, None), "the tests")
        for found in parsed.hook_fetches(step):
            if parsed.fails(found.fetch, step.verifier_network, parsed.image):
                yield _no_network(found, "a collect command")


def _void_fetches(parsed: ParsedTask, found: FoundFetch, phase: str) -> Iterator[Violation]:
    """Report a fetch, unless it leads to a 0, which has its own rule."""
    effects = [effect_of_missing(graded, found.fetch) for graded in parsed.steps]
    if Effect.ZERO not in effects:
        yield _no_network(found, phase)


def _no_network(found: FoundFetch, phase: str) -> Violation:
    fetch = found.fetch
    return Violation(
        fetch.file, fetch.line, f"{describe_fetch(fetch)} in {phase} has no network here"
    )


FETCH_WITHOUT_NETWORK = Rule(
    id="fetch-without-network",
    severity=Severity.WARNING,
    why="The fetch always fails where the task runs. Trials end void instead of graded.",
    fix=(
        "Stage the fetched content (plimsoll stage PATH --to DIR, then --assets DIR), install it "
        "in the Dockerfile, or give that phase a network in task.toml."
    ),
    check=_check_without_network,
)


def _check_pipes(parsed: ParsedTask) -> Iterator[Violation]:
    for build in parsed.builds:
        for stage in build.stages:
            for run in stage.runs:
                yield from _pipes_in(run.script, build.file, run.pipefail)
    for graded in parsed.steps:
        for source in graded.grader.scripts.values():
            yield from _pipes_in(source.script, source.file, False)


def _pipes_in(script: Script, file: str, pipefail: bool) -> Iterator[Violation]:
    for command in script.commands:
        plain = command.unwrapped()
        if plain.name == "set" and "pipefail" in plain.args:
            pipefail = plain.args[max(plain.args.index("pipefail") - 1, 0)].startswith("-")
        if plain.name in ("curl", "wget") and not pipefail and _feeds_shell(plain):
            message = f"`{plain.name} … | {plain.pipeline[-1]}` without pipefail hides a failure"
            yield Violation(file, plain.line, message)


def _feeds_shell(plain: Command) -> bool:
    after = [posixpath.basename(name) for name in plain.pipeline[plain.position + 1 :]]
    return bool(SHELLS.intersection(after)) or "sudo" in after


PIPE_TO_SHELL = Rule(
    id="pipe-to-shell-without-pipefail",
    severity=Severity.WARNING,
    why=(
        "If the download fails, the shell reads nothing and succeeds. The script continues "
        "without the program, and fails somewhere else or not at all."
    ),
    fix="Add `set -o pipefail` and stop on failure, or install the program in the Dockerfile.",
    check=_check_pipes,
)


RUST_ENV_FILES = tuple(f"{home}/.cargo/env" for home in ("$HOME", "${HOME}", "~", "/root"))


def _check_source(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        yield from _sources_in(graded)


def _sources_in(graded: GradedStep) -> Iterator[Violation]:
    created: set[str] = set()
    fetches = {(f.fetch.file, f.fetch.line): f.fetch for f in graded.fetches}
    for source in graded.grader.scripts.values():
        errexit = False
        for command in source.script.commands:
            fetch = fetches.get((source.file, command.line))
            if fetch is not None:
                created |= {fetch.target} if fetch.target else set()
                created |= set(UV_ENV_FILES) if fetch.kind is Kind.UV_TOOL else set()
                created |= (
                    set(RUST_ENV_FILES) if any("rustup" in what for what in fetch.what) else set()
                )
            plain = command.unwrapped()
            if plain.name == "set":
                errexit = with_options(plain.args, State(errexit=errexit)).errexit
            if plain.name in ("source", ".") and plain.args and not (plain.guarded or errexit):
                path = plain.args[0]
                if any(path == one or path.startswith(f"{one}/") for one in created):
                    message = f"`{plain.name} {path}` reads a file that only the fetch creates"
                    yield Violation(source.file, command.line, message)


SOURCE_OF_FETCHED_FILE = Rule(
    id="source-of-fetched-file",
    severity=Severity.WARNING,
    why=(
        "If the fetch fails, the file is missing. The shell prints an error and continues without "
        "the settings of that file."
    ),
    fix="Stop if the file is missing: `source FILE || exit 1`. Or install it in the Dockerfile.",
    check=_check_source,
)
