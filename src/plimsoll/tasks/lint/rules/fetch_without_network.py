"""A fetch that cannot succeed, and whose failure is loud."""

from collections.abc import Iterator

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.fetches.scanner import FoundFetch
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.rules.fetching import Effect, described, failing_tests, grade_without

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
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
                yield _place(FoundFetch(failing.fetch, None), "the tests")
        for found in subject.hook_fetches(step):
            if subject.fails(found.fetch, step.verifier_network, subject.image):
                yield _place(found, "a collect command")


def _loud(subject: ParsedTask, found: FoundFetch, phase: str) -> Iterator[Violation]:
    """What ends in a 0 is reported as that."""
    effects = [grade_without(graded, found.fetch) for graded in subject.steps]
    if Effect.ZERO not in effects:
        yield _place(found, phase)


def _place(found: FoundFetch, phase: str) -> Violation:
    fetch = found.fetch
    return Violation(fetch.file, fetch.line, f"{described(fetch)} in {phase} has no network here")


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
