"""A compose file under a name that is not read."""

from collections.abc import Iterator

from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation

__all__ = ["RULE"]

NAMES = ("docker-compose.yml", "compose.yaml", "compose.yml")


def _check(subject: ParsedTask) -> Iterator[Violation]:
    if subject.task.compose_file is not None:
        return
    for name in NAMES:
        if (subject.task.environment_dir / name).is_file():
            yield Violation(
                f"environment/{name}", None, f"{name} is not read; docker-compose.yaml is"
            )


RULE = Rule(
    id="compose-file-name",
    severity=Severity.ERROR,
    why="The services it describes are not started, and the task runs without them.",
    fix="Rename it to environment/docker-compose.yaml.",
    check=_check,
)
