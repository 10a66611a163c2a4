"""A script or a Python file of the tests that is not one."""

import re
import shutil
import subprocess
from collections.abc import Iterator

from plimsoll.tasks.grader.grader import ScriptFile
from plimsoll.tasks.lint.parsed_task import ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation

__all__ = ["RULE"]

BASH_MESSAGE = re.compile(r"line (\d+): (.*)")


def _check(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        for source in graded.grader.pythons.values():
            if source.problem is not None:
                problem = source.problem
                yield Violation(source.file, problem.line, f"not valid Python: {problem.message}")
        for script in graded.grader.scripts.values():
            if script.script.errors:
                yield from _not_a_script(script)


def _not_a_script(source: ScriptFile) -> Iterator[Violation]:
    """The grammar is not bash itself: what it stumbles over counts only if bash does too."""
    bash = shutil.which("bash")
    shell = (source.script.shebang or "bash").split("/")[-1].split()[-1]
    if bash is None or shell not in ("bash", "sh", "dash"):
        return
    text = source.raw.replace(b"\r\n", b"\n")
    try:
        done = subprocess.run([bash, "-n"], input=text, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0:
        return
    match = BASH_MESSAGE.search(done.stderr.decode("utf-8", "replace"))
    line = int(match[1]) if match else source.script.errors[0]
    yield Violation(
        source.file, line, f"not a valid script: {match[2] if match else 'syntax error'}"
    )


RULE = Rule(
    id="tests-do-not-parse",
    severity=Severity.ERROR,
    why="The tests cannot run at all, and a script that takes that for a failed test writes 0.",
    fix="Mend the file; `bash -n FILE` or `python3 -m py_compile FILE` shows the same problem.",
    check=_check,
)
