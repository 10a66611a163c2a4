"""A compose file under a name that is not read."""

from collections.abc import Iterator

from plimsoll.tasks.lint.finding import Severity
from plimsoll.tasks.lint.rule import Place, Rule
from plimsoll.tasks.lint.subject import Subject

__all__ = ["RULE"]

NAMES = ("docker-compose.yml", "compose.yaml", "compose.yml")


def _check(subject: Subject) -> Iterator[Place]:
    if subject.task.compose_file is not None:
        return
    for name in NAMES:
        if (subject.task.environment_dir / name).is_file():
            yield Place(f"environment/{name}", None, f"{name} is not read; docker-compose.yaml is")


RULE = Rule(
    id="compose-file-name",
    severity=Severity.ERROR,
    why="The services it describes are not started, and the task runs without them.",
    fix="Rename it to environment/docker-compose.yaml.",
    check=_check,
)
