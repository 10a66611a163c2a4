"""A repository that the Dockerfile clones, where the build has no network."""

from collections.abc import Iterator

from plimsoll.tasks.lint.fetch import Kind
from plimsoll.tasks.lint.finding import Severity
from plimsoll.tasks.lint.rule import Place, Rule
from plimsoll.tasks.lint.rules.fetching import Effect, described, grade_without
from plimsoll.tasks.lint.subject import Subject

__all__ = ["RULE"]


def _check(subject: Subject) -> Iterator[Place]:
    for found in subject.build_fetches:
        fetch = found.fetch
        if fetch.kind is not Kind.GIT or not subject.fails(fetch):
            continue
        message = f"{described(fetch)} in the build has no network here"
        if any(grade_without(graded, fetch) is Effect.ZERO for graded in subject.steps):
            message += f"; the grader needs {fetch.target} and writes 0 without it"
            yield Place(fetch.file, fetch.line, message, Severity.ERROR)
        else:
            yield Place(fetch.file, fetch.line, message)


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
