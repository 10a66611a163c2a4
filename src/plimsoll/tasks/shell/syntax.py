"""Syntax tree of a shell script: typed statements in source order.

Quotes are removed from words; expansions (`$X`, `$(…)`) are kept as written.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = [
    "AndOr",
    "Assignment",
    "Block",
    "Case",
    "Command",
    "Function",
    "Group",
    "If",
    "Loop",
    "Not",
    "Pipeline",
    "Redirect",
    "Script",
    "Statement",
    "Substitution",
    "statements_of",
]

WRAPPERS = {
    "builtin": (),
    "command": (),
    "doas": ("-u",),
    "env": ("-u", "-C", "--unset", "--chdir"),
    "exec": ("-a",),
    "ionice": ("-c", "-n"),
    "nice": ("-n",),
    "nohup": (),
    "stdbuf": ("-i", "-o", "-e"),
    "sudo": ("-u", "-g", "--user", "--group"),
    "time": (),
    "timeout": ("-k", "-s", "--kill-after", "--signal"),
    "xvfb-run": ("-n", "-s"),
}
"""Commands that run another command, with their options that take a value."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """`2>&1` has the operator `>&`, the descriptor 2 and the target "1"."""

    operator: str
    descriptor: int | None
    target: str


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(…)` within a word; `text` is its source text."""

    text: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value` on its own, or before a command for that command alone."""

    name: str
    value: str
    substitutions: tuple[Substitution, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. `[ … ]` and `[[ … ]]` are commands of that name."""

    name: str
    args: tuple[str, ...]
    line: int
    index: int
    """Position among the commands of the script."""
    guarded: bool = False
    """A failure is caught by `||`, or by an `if` or loop that has it as its condition."""
    conditional: bool = False
    """The command is in a branch, a loop or a function and may never run."""
    pipeline: tuple[str, ...] = ()
    """The names of all commands of its pipeline."""
    position: int = 0
    """Index in that pipeline."""
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    heredoc: str | None = None
    substitutions: tuple[Substitution, ...] = ()
    inner: "Block | None" = None
    """The script that the command runs: the text of `bash -c` or `eval`."""

    def unwrapped(self) -> "Command":
        """Return the command inside `sudo`, `env`, `timeout` and similar, without its folder."""
        name, args = posixpath.basename(self.name), self.args
        while name in WRAPPERS:
            inner = _after_options(name, args)
            if not inner or (name == "command" and args[0] in ("-v", "-V")):
                break
            name, args = posixpath.basename(inner[0]), inner[1:]
        return replace(self, name=name, args=args)


def _after_options(name: str, args: tuple[str, ...]) -> tuple[str, ...]:
    takes_value = WRAPPERS[name]
    at = 0
    while at < len(args) and (
        args[at].startswith("-") or (name == "env" and "=" in args[at].split("/")[0])
    ):
        at += 2 if args[at] in takes_value else 1
    return args[at + (name == "timeout") :]


@dataclass(frozen=True, slots=True)
class Pipeline:
    parts: tuple["Statement", ...]


@dataclass(frozen=True, slots=True)
class AndOr:
    left: "Statement"
    is_and: bool
    right: "Statement"


@dataclass(frozen=True, slots=True)
class Not:
    body: "Statement"


@dataclass(frozen=True, slots=True)
class If:
    """Pairs of condition and body, then the `else` block."""

    branches: tuple[tuple["Block", "Block"], ...]
    otherwise: "Block | None"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop. `for` has no condition; `until` runs while its condition fails."""

    condition: "Block | None"
    until: bool
    body: "Block"


@dataclass(frozen=True, slots=True)
class Case:
    subject: str
    items: tuple[tuple[tuple[str, ...], "Block"], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`{ … }`, or `( … )` as a subshell, with the redirects of the whole group."""

    body: "Block"
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class Block:
    statements: tuple["Statement", ...] = ()


Statement = Command | Assignment | Pipeline | AndOr | Not | If | Loop | Case | Group | Function


def statements_of(block: Block) -> Iterator[Statement]:
    """Yield all statements of a block, nested ones included, outer ones first."""
    for statement in block.statements:
        yield statement
        yield from statements_of(Block(_children(statement)))


def _children(statement: Statement) -> tuple[Statement, ...]:
    match statement:
        case Pipeline():
            return statement.parts
        case AndOr():
            return statement.left, statement.right
        case Not():
            return (statement.body,)
        case If():
            pairs = (block.statements for pair in statement.branches for block in pair)
            last = statement.otherwise.statements if statement.otherwise else ()
            return (*(one for statements in pairs for one in statements), *last)
        case Loop():
            condition = statement.condition.statements if statement.condition else ()
            return (*condition, *statement.body.statements)
        case Case():
            return tuple(one for _, block in statement.items for one in block.statements)
        case Group() | Function():
            return statement.body.statements
        case Command() | Assignment():
            return ()


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script."""

    body: Block
    commands: tuple[Command, ...]
    """All commands in source order, including those in `$(…)`, branches and functions."""
    assignments: tuple[Assignment, ...]
    functions: tuple[Function, ...]
    errors: tuple[int, ...]
    """The lines with syntax errors."""
    shebang: str | None

    def named(self, *names: str) -> Iterator[Command]:
        """Yield the commands of these names, unwrapped from `sudo` and similar."""
        for command in self.commands:
            plain = command.unwrapped()
            if plain.name in names:
                yield plain
