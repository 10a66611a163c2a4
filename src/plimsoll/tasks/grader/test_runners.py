"""Classes of commands in a grader: test runners, checks and housekeeping."""

import re

from plimsoll.tasks.shell.options import split_options
from plimsoll.tasks.shell.syntax import Command

__all__ = ["CHECKS", "HOUSEKEEPING", "NO_COMPENSATION", "is_runner", "python_module", "runner_name"]

# fmt: off
RUNNERS = {
    "bats", "ctest", "jest", "mocha", "nose2", "nosetests", "nox", "phpunit", "py.test", "pytest",
    "rspec", "tox", "vitest",
}
SUBCOMMANDS = {
    "bun": ("test",), "cargo": ("test", "nextest"), "dotnet": ("test",), "go": ("test",),
    "gradle": ("test",), "gradlew": ("test",), "make": ("test", "check"), "mvn": ("test", "verify"),
    "npm": ("test", "t"), "pnpm": ("test",), "yarn": ("test",),
}
MODULES = ("pytest", "unittest", "nose2", "django", "doctest")
CHECKS = {"[", "[[", "test", "diff", "cmp", "grep", "egrep", "fgrep", "rg"}
HOUSEKEEPING = {
    ":", "true", "cat", "cd", "chmod", "chown", "cp", "cut", "date", "declare", "echo", "env",
    "export", "find", "head", "hostname", "id", "kill", "ln", "local", "ls", "mkdir", "mktemp",
    "mv", "popd", "printf", "ps", "pushd", "pwd", "readonly", "rm", "sed", "set", "shift", "shopt",
    "sleep", "sort", "tail", "tar", "tee", "touch", "tr", "trap", "typeset", "ulimit", "umask",
    "uname", "unset", "wait", "wc", "whoami", "xargs", "awk", "apt-get", "apt",
}
# Commands after `||` that do not compensate for the failed command.
NO_COMPENSATION = {
    ":", "true", "echo", "printf", "sleep", "exit", "return", "cat", "rm", "continue", "break",
    "tee", "false", "ls", "date", "set", "unset",
}
# fmt: on
PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?|pypy3?")
WITH_VALUE = ("-m", "-c", "-W", "-X")
UV_VALUES = (
    "-w",
    "--with",
    "--from",
    "-p",
    "--python",
    "--extra",
    "--group",
    "--with-requirements",
)


def python_module(command: Command) -> str | None:
    """Return the module of `python -m module`; None for any other command."""
    plain = command.unwrapped()
    if not PYTHON.fullmatch(plain.name):
        return None
    return split_options(plain.args, WITH_VALUE, stop=True).value("-m")


def runner_name(command: Command) -> str | None:
    """Return the display name of a test runner; None for any other command."""
    plain = command.unwrapped()
    if plain.name in RUNNERS:
        return plain.name
    module = (python_module(plain) or "").split(".")[0]
    if module in MODULES:
        return module
    if plain.name in ("uvx", "uv", "npx", "poetry", "pipx", "coverage", "xvfb-run"):
        operands = split_options(plain.args, UV_VALUES, stop=True).operands
        if operands[:1] == ("run",):
            operands = split_options(operands[1:], UV_VALUES, stop=True).operands
        first = operands[0].split("@")[0] if operands else ""
        if first in RUNNERS:
            return first
        if PYTHON.fullmatch(first) and "-m" in operands:
            after = operands[operands.index("-m") + 1 :]
            return after[0] if after and after[0] in MODULES else None
        return None
    subcommands = SUBCOMMANDS.get(plain.name, ())
    operands = split_options(plain.args, ("-C", "-f", "--prefix")).operands
    first = operands[:1]
    return f"{plain.name} {first[0]}" if first and first[0] in subcommands else None


def is_runner(command: Command) -> bool:
    return runner_name(command) is not None
