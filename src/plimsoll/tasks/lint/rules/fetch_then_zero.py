"""A fetch that cannot succeed, after which the grader writes 0."""

from collections.abc import Iterator

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.rules.fetching import Effect, described, failing_tests, grade_without

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        for failing in failing_tests(subject, graded):
            if failing.effect is Effect.ZERO:
                fetch = failing.fetch
                message = f"{described(fetch)} has no network here; the grader goes on to a 0"
                yield Violation(fetch.file, fetch.line, message)
    for graded in subject.steps:
        earlier = [
            (one.fetch, "the build")
            for one in subject.build_fetches
            if one.fetch.kind is not Kind.GIT and subject.fails(one.fetch)
        ]
        earlier += [
            (one.fetch, "set-up")
            for one in subject.set_up_fetches(graded.step)
            if subject.fails(one.fetch, subject.task.network, subject.image)
        ]
        for fetch, phase in earlier:
            if grade_without(graded, fetch) is Effect.ZERO:
                message = f"{described(fetch)} has no network in {phase}; without {fetch.target}"
                yield Violation(fetch.file, fetch.line, f"{message} the grader writes 0")


RULE = Rule(
    id="fetch-then-zero",
    severity=Severity.ERROR,
    why=(
        "The fetch always fails where the task runs, and the script carries on to a branch that "
        "writes 0. Every reward would be 0 whatever the agent did."
    ),
    fix=(
        "Stage what is fetched (plimsoll stage PATH --to DIR, then --assets DIR), install it in "
        "the Dockerfile, or let the grader end without a reward when the fetch fails."
    ),
    check=_check,
)
