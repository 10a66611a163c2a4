"""A fetch that cannot succeed, and whose failure is loud."""

from collections.abc import Iterator

from plimsoll.tasks.lint.fetch import Kind
from plimsoll.tasks.lint.finding import Severity
from plimsoll.tasks.lint.rule import Place, Rule
from plimsoll.tasks.lint.rules.fetching import Effect, described, failing_tests, grade_without
from plimsoll.tasks.lint.scan import Found
from plimsoll.tasks.lint.subject import Subject

__all__ = ["RULE"]


def _check(subject: Subject) -> Iterator[Place]:
    for found in subject.build_fetches:
        # Clones have a rule of their own.
        if found.fetch.kind is not Kind.GIT and subject.fails(found.fetch):
            yield from _loud(subject, found, "the build")
    for graded in subject.steps:
        step = graded.step
        for found in subject.set_up_fetches(step):
            if subject.fails(found.fetch, subject.task.network, subject.image):
                yield from _loud(subject, found, "set-up")
        for found in subject.agent_fetches(step):
            if subject.fails(found.fetch, step.agent_network, subject.image):
                yield _place(found, "the solution")
        for failing in failing_tests(subject, graded):
            if failing.effect is Effect.LOUD:
                yield _place(Found(failing.fetch, None), "the tests")
        for found in subject.hook_fetches(step):
            if subject.fails(found.fetch, step.verifier_network, subject.image):
                yield _place(found, "a collect command")


def _loud(subject: Subject, found: Found, phase: str) -> Iterator[Place]:
    """What ends in a 0 is reported as that."""
    effects = [grade_without(graded, found.fetch) for graded in subject.steps]
    if Effect.ZERO not in effects:
        yield _place(found, phase)


def _place(found: Found, phase: str) -> Place:
    fetch = found.fetch
    return Place(fetch.file, fetch.line, f"{described(fetch)} in {phase} has no network here")


RULE = Rule(
    id="fetch-without-network",
    severity=Severity.WARNING,
    why="The fetch always fails where the task runs. Trials end void instead of graded.",
    fix=(
        "Stage what is fetched (plimsoll stage PATH --to DIR, then --assets DIR), install it in "
        "the Dockerfile, or give that phase a network in task.toml."
    ),
    check=_check,
)
