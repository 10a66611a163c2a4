"""What an agent that knows the solution says, turn by turn: what the policy learns from first.

The words around its commands are those of the agent `shell`.
"""

from dataclasses import dataclass

from plimsoll.training.tiny.kinds import Instance

__all__ = ["DONE", "SILENT", "Turn", "block", "talk"]

DONE = "done"
SILENT = "exit 0\n(no output)"
"""What the agent is told of a command that printed nothing."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy is told, and what it answers."""

    told: str
    answer: str


def talk(instance: Instance) -> list[Turn]:
    """The whole conversation. Of its commands only `cat` prints something."""
    told = instance.instruction
    turns: list[Turn] = []
    for command in instance.commands:
        turns.append(Turn(told, block(command)))
        shown = instance.files.get(command.removeprefix("cat "))
        told = SILENT if shown is None else f"exit 0\n{shown}"
    return [*turns, Turn(told, DONE)]


def block(command: str) -> str:
    """A command as the agent reads it from an answer."""
    return f"```bash\n{command}\n```"
