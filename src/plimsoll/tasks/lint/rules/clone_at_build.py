"""A repository that the Dockerfile clones, where the build has no network."""

from collections.abc import Iterator

from plimsoll.tasks.fetches.fetch import Kind
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.lint.rules.fetching import Effect, described, grade_without

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for found in subject.build_fetches:
        fetch = found.fetch
        if fetch.kind is not Kind.GIT or not subject.fails(fetch):
            continue
        message = f"{described(fetch)} in the build has no network here"
        if any(grade_without(graded, fetch) is Effect.ZERO for graded in subject.steps):
            message += f"; the grader needs {fetch.target} and writes 0 without it"
            yield Violation(fetch.file, fetch.line, message, Severity.ERROR)
        else:
            yield Violation(fetch.file, fetch.line, message)


RULE = Rule(
    id="clone-at-build",
    severity=Severity.WARNING,
    why=(
        "Where the image is made without a network the clone fails and its folder is empty. A "
        "grader that finds its parser there, and writes 0 when it cannot, grades every trial 0."
    ),
    fix=(
        "Stage the repository at its pinned commit (plimsoll stage PATH --to DIR) and run with "
        "--assets DIR: it is mounted at the path that the task clones to."
    ),
    check=_check,
)
