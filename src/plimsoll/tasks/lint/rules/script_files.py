"""How scripts are saved: line endings, and the line that names the shell."""

from collections.abc import Iterator
from pathlib import Path

from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.text_files import files_below, relative_name

__all__ = ["CRLF", "NO_SHEBANG"]


def _scripts(subject: ParsedTask) -> Iterator[tuple[str, bytes]]:
    for graded in subject.steps:
        for source in graded.grader.scripts.values():
            yield source.file, source.raw
        others: list[Path] = []
        if graded.step.solution_dir is not None:
            others += files_below(graded.step.solution_dir, "*.sh")
        if graded.step.workdir is not None:
            others += files_below(graded.step.workdir, "setup.sh")
        for path in others:
            try:
                yield relative_name(path, subject.task.path), path.read_bytes()
            except OSError:
                continue


def _check_crlf(subject: ParsedTask) -> Iterator[Violation]:
    for file, raw in _scripts(subject):
        at = raw.find(b"\r\n")
        if at >= 0:
            yield Violation(file, raw.count(b"\n", 0, at) + 1, "lines end with CR LF")


def _check_shebang(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        main = graded.grader.main
        if main is not None and not main.raw.removeprefix(b"\xef\xbb\xbf").startswith(b"#!"):
            yield Violation(main.file, 1, "no #! line")


CRLF = Rule(
    id="crlf-line-endings",
    severity=Severity.ERROR,
    why="A shell takes the CR as part of each word: `/bin/bash\\r` is not there, nor is `fi\\r`.",
    fix="Save the file with LF alone: `sed -i 's/\\r$//' FILE`.",
    check=_check_crlf,
)
NO_SHEBANG = Rule(
    id="no-shebang",
    severity=Severity.WARNING,
    why="Which shell runs the script then depends on who starts it; some refuse to.",
    fix="Begin the script with `#!/bin/bash`.",
    check=_check_shebang,
)
