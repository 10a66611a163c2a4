"""How a task's script (test.sh, solve.sh, setup.sh) is started in a sandbox."""

from pathlib import Path

__all__ = ["has_carriage_returns", "script_argv"]

_HEAD = 4096


def script_argv(script: Path, inside: str) -> list[str]:
    """The interpreter that its first line names, or bash where it names none.

    The interpreter is started by name, so the script needs no x bit.
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
    """Whether its lines end as on Windows, which no shell can run."""
    with script.open("rb") as file:
        return b"\r\n" in file.read(_HEAD)
