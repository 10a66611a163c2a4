"""What somebody says who knows the solution of an instance but is careless, turn by turn: what
the policy learns from first.

The words around the commands are those of the agent `shell`.
"""

import re
from dataclasses import dataclass
from random import Random

from plimsoll.training.tiny.kinds import Instance

__all__ = ["Turn", "talk"]

DONE = "done"
KEEPS = re.compile(r" > \S+$| -i\b")
"""What makes a command keep its result instead of printing it."""
SLIPS = 0.65
"""How often the work is not done: never begun, broken off, or its result not kept."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy is told, and what it answers."""

    told: str
    answer: str


def talk(instance: Instance, random: Random) -> list[Turn]:
    """The whole conversation."""
    told = instance.instruction
    turns: list[Turn] = []
    for command, printed in commands(instance, random):
        turns.append(Turn(told, f"```bash\n{command}\n```"))
        told = f"exit 0\n{printed or '(no output)'}"
    return [*turns, Turn(told, DONE)]


def commands(instance: Instance, random: Random) -> list[tuple[str, str]]:
    """The commands that are run, each with what it prints."""
    *looks, work = instance.commands
    right = [(look, instance.files[look.removeprefix("cat ")]) for look in looks]
    if random.random() >= SLIPS:
        return [*right, (work, "")]
    done = random.randrange(len(instance.commands) + 1)
    if done < len(instance.commands):
        return right[:done]
    return [*right, (KEEPS.sub("", work), instance.result)]
