"""Files that a test script relies on and that are not among the tests."""

import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from plimsoll.tasks.grader.test_runners import python_module
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.shell.syntax import Command

__all__ = ["MISSING_FILE", "NO_TESTS"]

READERS = re.compile(
    r"cat|diff|cmp|head|tail|wc|grep|source|\.|bash|sh|pytest|python(?:\d(?:\.\d+)?)?"
)
MAKERS = {
    "cp",
    "mv",
    "ln",
    "tee",
    "touch",
    "mkdir",
    "tar",
    "unzip",
    "curl",
    "wget",
    "git",
    "install",
}


def _check_missing(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        if graded.step.separate_verifier:
            continue
        made = _made(graded)
        for source in graded.grader.scripts.values():
            for command in source.script.commands:
                plain = command.unwrapped()
                if not READERS.fullmatch(plain.name) or plain.guarded:
                    continue
                for word in plain.args:
                    if _is_missing(word, graded, made):
                        yield Violation(source.file, command.line, f"{word} is not among the tests")


def _is_missing(word: str, graded: GradedStep, made: list[str]) -> bool:
    path = word.split("::")[0]
    if not re.fullmatch(r"/tests/[\w./-]+", path):
        return False
    name = posixpath.normpath(path).removeprefix("/tests/")
    if any(file == name or file.startswith(f"{name}/") for file in graded.grader.files):
        return False
    return not any(path == known or path.startswith(f"{known}/") for known in made)


def _made(graded: GradedStep) -> list[str]:
    """Paths that the scripts themselves, or what they run, may put there."""
    made: list[str] = []
    for source in graded.grader.scripts.values():
        for command in source.script.commands:
            made += [redirect.target for redirect in command.redirects]
            plain = command.unwrapped()
            if plain.name in MAKERS or not READERS.fullmatch(plain.name):
                made += [re.sub(r"^--?[\w-]+=", "", arg).rstrip("/") for arg in plain.args]
    texts = (text for python in graded.grader.pythons.values() for text, _ in python.constants)
    return made + [text for text in texts if text.startswith("/tests/")]


def _check_no_tests(subject: ParsedTask) -> Iterator[Violation]:
    for graded in subject.steps:
        for source in graded.grader.scripts.values():
            for command in source.script.commands:
                pattern = _discovers(command)
                if pattern is not None and not any(
                    fnmatchcase(posixpath.basename(name), pattern) for name in graded.grader.files
                ):
                    message = f"unittest looks for {pattern} in /tests, and no file is named so"
                    yield Violation(source.file, command.line, message)


def _discovers(command: Command) -> str | None:
    """The pattern of `unittest discover -s /tests -p …`."""
    plain = command.unwrapped()
    if python_module(plain) != "unittest" or "discover" not in plain.args:
        return None
    options = dict(zip(plain.args, plain.args[1:], strict=False))
    start = options.get("-s") or options.get("--start-directory")
    pattern = options.get("-p") or options.get("--pattern") or "test*.py"
    return pattern if start == "/tests" and "$" not in pattern else None


MISSING_FILE = Rule(
    id="missing-test-file",
    severity=Severity.ERROR,
    why="The script fails on it in every trial: as a 0 if it goes on, as a void trial if not.",
    fix="Put the file into tests/, or mend the path; tests/ is /tests in the sandbox.",
    check=_check_missing,
)
NO_TESTS = Rule(
    id="no-tests-collected",
    severity=Severity.ERROR,
    why="A runner that finds no tests has tested nothing, whatever the script makes of it.",
    fix="Let the pattern match the files in tests/.",
    check=_check_no_tests,
)
