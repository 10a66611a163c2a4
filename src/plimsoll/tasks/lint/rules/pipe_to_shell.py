"""`curl … | sh` whose failure nobody sees."""

import posixpath
from collections.abc import Iterator

from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.shell.parser import SHELLS
from plimsoll.tasks.shell.syntax import Command, Script

__all__ = ["RULE"]


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for build in subject.builds:
        for stage in build.stages:
            for run in stage.runs:
                yield from _in(run.script, build.file, run.pipefail)
    for graded in subject.steps:
        for source in graded.grader.scripts.values():
            yield from _in(source.script, source.file, False)


def _in(script: Script, file: str, pipefail: bool) -> Iterator[Violation]:
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


RULE = Rule(
    id="pipe-to-shell-without-pipefail",
    severity=Severity.WARNING,
    why=(
        "When the download fails the shell reads nothing and succeeds. The script goes on "
        "without what was to be installed, and fails somewhere else or not at all."
    ),
    fix="Put `set -o pipefail` before it and stop when it fails, or install it in the Dockerfile.",
    check=_check,
)
