"""Lint rules about the files of the tests: missing, unparsable, or unable to succeed."""

import posixpath
import re
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from plimsoll.tasks.grader.grader import ScriptFile, python_module
from plimsoll.tasks.lint.parsed_task import GradedStep, ParsedTask
from plimsoll.tasks.lint.rule import Rule, Severity, Violation
from plimsoll.tasks.shell.parser import parse_script
from plimsoll.tasks.shell.syntax import Command
from plimsoll.tasks.text_files import files_below, read_text, relative_name

__all__ = [
    "CRLF_LINE_ENDINGS",
    "GRADER_SLEEPS",
    "MISSING_TEST_FILE",
    "MISSING_TEST_SCRIPT",
    "NO_SHEBANG",
    "NO_TESTS_COLLECTED",
    "SET_UP_ALWAYS_FAILS",
    "TESTS_DO_NOT_PARSE",
]


def _check_script(parsed: ParsedTask) -> Iterator[Violation]:
    if parsed.task.environment.os == "windows":
        return
    for step in parsed.task.steps:
        if step.test_script is None:
            file = (step.folder / "tests/test.sh").relative_to(parsed.task.path).as_posix()
            where = f" of step {step.name}" if parsed.task.is_multi_step else ""
            yield Violation(file, None, f"test.sh{where} is missing")


MISSING_TEST_SCRIPT = Rule(
    id="missing-test-script",
    severity=Severity.ERROR,
    why="tests/test.sh grades a trial. Without it every trial is void.",
    fix="Write tests/test.sh; it runs the tests and writes /logs/verifier/reward.txt.",
    check=_check_script,
)


READERS = re.compile(
    r"cat|diff|cmp|head|tail|wc|grep|source|\.|bash|sh|pytest|python(?:\d(?:\.\d+)?)?"
)
WRITERS = {
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


def _check_files(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        if graded.step.separate_verifier:
            continue
        created = _created_paths(graded)
        for source in graded.grader.scripts.values():
            for command in source.script.commands:
                plain = command.unwrapped()
                if not READERS.fullmatch(plain.name) or plain.guarded:
                    continue
                for word in plain.args:
                    if _is_missing(word, graded, created):
                        yield Violation(source.file, command.line, f"{word} is not among the tests")


def _is_missing(word: str, graded: GradedStep, created: list[str]) -> bool:
    path = word.split("::")[0]
    if not re.fullmatch(r"/tests/[\w./-]+", path):
        return False
    name = posixpath.normpath(path).removeprefix("/tests/")
    if any(file == name or file.startswith(f"{name}/") for file in graded.grader.files):
        return False
    return not any(path == one or path.startswith(f"{one}/") for one in created)


def _created_paths(graded: GradedStep) -> list[str]:
    """Return the paths that the scripts, or the programs they run, may create."""
    created: list[str] = []
    for source in graded.grader.scripts.values():
        for command in source.script.commands:
            created += [redirect.target for redirect in command.redirects]
            plain = command.unwrapped()
            if plain.name in WRITERS or not READERS.fullmatch(plain.name):
                created += [re.sub(r"^--?[\w-]+=", "", arg).rstrip("/") for arg in plain.args]
    texts = (text for python in graded.grader.pythons.values() for text, _ in python.constants)
    return created + [text for text in texts if text.startswith("/tests/")]


def _check_no_tests(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        for source in graded.grader.scripts.values():
            for command in source.script.commands:
                pattern = _discovery_pattern(command)
                if pattern is not None and not any(
                    fnmatchcase(posixpath.basename(name), pattern) for name in graded.grader.files
                ):
                    message = f"unittest looks for {pattern} in /tests, and no file matches"
                    yield Violation(source.file, command.line, message)


def _discovery_pattern(command: Command) -> str | None:
    """Return the pattern of `unittest discover -s /tests -p …`; None for other commands."""
    plain = command.unwrapped()
    if python_module(plain) != "unittest" or "discover" not in plain.args:
        return None
    options = dict(zip(plain.args, plain.args[1:], strict=False))
    start = options.get("-s") or options.get("--start-directory")
    pattern = options.get("-p") or options.get("--pattern") or "test*.py"
    return pattern if start == "/tests" and "$" not in pattern else None


MISSING_TEST_FILE = Rule(
    id="missing-test-file",
    severity=Severity.ERROR,
    why="The script fails in every trial: with a 0 if it continues, else with a void trial.",
    fix="Add the file to tests/, or fix the path; tests/ is /tests in the sandbox.",
    check=_check_files,
)
NO_TESTS_COLLECTED = Rule(
    id="no-tests-collected",
    severity=Severity.ERROR,
    why="A runner that finds no tests has tested nothing, whatever reward the script writes.",
    fix="Change the pattern or the file names in tests/ so that they match.",
    check=_check_no_tests,
)


BASH_MESSAGE = re.compile(r"line (\d+): (.*)")


def _check_syntax(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        for source in graded.grader.pythons.values():
            if source.problem is not None:
                problem = source.problem
                yield Violation(source.file, problem.line, f"not valid Python: {problem.message}")
        for script in graded.grader.scripts.values():
            if script.script.errors:
                yield from _script_errors(script)


def _script_errors(source: ScriptFile) -> Iterator[Violation]:
    """Report syntax errors that bash confirms; the grammar is not exactly bash's."""
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


TESTS_DO_NOT_PARSE = Rule(
    id="tests-do-not-parse",
    severity=Severity.ERROR,
    why="The tests cannot run. A script that treats this as a failed test writes 0.",
    fix="Fix the file; `bash -n FILE` or `python3 -m py_compile FILE` shows the problem.",
    check=_check_syntax,
)


def _scripts(parsed: ParsedTask) -> Iterator[tuple[str, bytes]]:
    for graded in parsed.steps:
        for source in graded.grader.scripts.values():
            yield source.file, source.raw
        others: list[Path] = []
        if graded.step.solution_dir is not None:
            others += files_below(graded.step.solution_dir, "*.sh")
        if graded.step.workdir is not None:
            others += files_below(graded.step.workdir, "setup.sh")
        for path in others:
            try:
                yield relative_name(path, parsed.task.path), path.read_bytes()
            except OSError:
                continue


def _check_crlf(parsed: ParsedTask) -> Iterator[Violation]:
    for file, raw in _scripts(parsed):
        at = raw.find(b"\r\n")
        if at >= 0:
            yield Violation(file, raw.count(b"\n", 0, at) + 1, "lines end with CR LF")


def _check_shebang(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        main = graded.grader.main
        if main is not None and not main.raw.removeprefix(b"\xef\xbb\xbf").startswith(b"#!"):
            yield Violation(main.file, 1, "no #! line")


CRLF_LINE_ENDINGS = Rule(
    id="crlf-line-endings",
    severity=Severity.ERROR,
    why="A shell reads the CR as part of the last word: `/bin/bash\\r` and `fi\\r` are unknown.",
    fix="Save the file with LF alone: `sed -i 's/\\r$//' FILE`.",
    check=_check_crlf,
)
NO_SHEBANG = Rule(
    id="no-shebang",
    severity=Severity.WARNING,
    why="The shell that runs the script then depends on the caller; some refuse to run it.",
    fix="Begin the script with `#!/bin/bash`.",
    check=_check_shebang,
)


UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _check_set_up(parsed: ParsedTask) -> Iterator[Violation]:
    for step in parsed.task.steps:
        path = step.workdir / "setup.sh" if step.workdir is not None else None
        text = read_text(path) if path is not None else None
        if path is None or text is None:
            continue
        for command in parse_script(text).named("exit"):
            if not command.conditional:
                if re.fullmatch(r"[1-9]\d*", command.args[0] if command.args else ""):
                    message = f"setup.sh always exits with {command.args[0]}"
                    yield Violation(relative_name(path, parsed.task.path), command.line, message)
                break


def _check_sleeps(parsed: ParsedTask) -> Iterator[Violation]:
    for graded in parsed.steps:
        main = graded.grader.main
        if main is None:
            continue
        limit = graded.step.verifier.timeout_sec
        for command in main.script.named("sleep"):
            seconds = sum(map(_seconds, command.args))
            if not command.conditional and not command.redirects and seconds >= limit:
                message = f"sleeps for {seconds:g} s; the verifier has {limit:g} s"
                yield Violation(main.file, command.line, message)


def _seconds(word: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smhd]?)", word)
    return float(match[1]) * UNITS[match[2]] if match else 0.0


SET_UP_ALWAYS_FAILS = Rule(
    id="set-up-always-fails",
    severity=Severity.ERROR,
    why="If the set-up script fails, the trial is void before the agent starts.",
    fix="Let setup.sh exit with 0 on success.",
    check=_check_set_up,
)
GRADER_SLEEPS = Rule(
    id="grader-sleeps-past-timeout",
    severity=Severity.ERROR,
    why="The grader is stopped before it writes a reward, so every trial is void.",
    fix="Sleep for less, or raise `timeout_sec` in [verifier].",
    check=_check_sleeps,
)
