"""Which instances are for what. No two sets have an instruction or a command in common."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from plimsoll.training.tiny.kinds import Instance, draw

__all__ = ["DemoTasks", "demo_tasks", "other_instances"]

SEED = 53
TRAINING, HELD_OUT = 20, 16


@dataclass(frozen=True, slots=True)
class DemoTasks:
    """The tasks of the demo."""

    training: tuple[Instance, ...]
    held_out: tuple[Instance, ...]

    @property
    def said(self) -> frozenset[str]:
        """What no other instance says."""
        tasks = (*self.training, *self.held_out)
        return frozenset(text for task in tasks for text in (task.instruction, *task.commands))


def demo_tasks() -> DemoTasks:
    random = Random(SEED)
    taken: set[str] = set()
    chosen: list[Instance] = []
    while len(chosen) < TRAINING + HELD_OUT:
        # Four at a time, one of each kind, so that each set has equally many of all.
        for instance in draw(random, 4, without=taken):
            taken |= instance.said
            chosen.append(instance)
    return DemoTasks(tuple(chosen[:TRAINING]), tuple(chosen[TRAINING:]))


def other_instances(random: Random, number: int) -> Iterator[Instance]:
    """Instances that are no tasks of the demo: what the policy has learned from before."""
    return draw(random, number, without=demo_tasks().said)
