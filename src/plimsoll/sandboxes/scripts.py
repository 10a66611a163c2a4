"""The command line that starts a task's script (test.sh, solve.sh, setup.sh) in a sandbox."""

from pathlib import Path

__all__ = ["has_carriage_returns", "script_argv"]

_HEAD = 4096


def script_argv(script: Path, inside: str) -> list[str]:
    """The argv for a script at the path `inside`: by the interpreter of its first line, or bash.

    The interpreter is started explicitly, so the script need not be executable.
    """
    with script.open("rb") as file:
        first = file.readline(_HEAD)
    if first.startswith(b"#!"):
        # As the kernel does: the program, then at most one argument.
        words = first[2:].decode("utf-8", "replace").strip().split(None, 1)
        if words:
            return [*words, inside]
    return ["bash", inside]


def has_carriage_returns(script: Path) -> bool:
    """Whether the script has Windows line endings, which shells cannot run."""
    with script.open("rb") as file:
        return b"\r\n" in file.read(_HEAD)
