"""Which instances are for what. No two sets share one: an instance is named after its kind and
the file that it is about, and no name is in two sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from plimsoll.training.tiny.kinds import Instance, draw

__all__ = ["DemoTasks", "demo_tasks", "other_instances"]

SEED = 2
TRAINING, HELD_OUT = 20, 16


@dataclass(frozen=True, slots=True)
class DemoTasks:
    """The tasks of the demo."""

    training: tuple[Instance, ...]
    held_out: tuple[Instance, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(task.name for task in (*self.training, *self.held_out))


def demo_tasks() -> DemoTasks:
    random = Random(SEED)
    taken: set[str] = set()
    chosen: list[Instance] = []
    while len(chosen) < TRAINING + HELD_OUT:
        # Four at a time, one of each kind, so that each set has equally many of all.
        for instance in draw(random, 4, without=taken):
            taken.add(instance.name)
            chosen.append(instance)
    return DemoTasks(tuple(chosen[:TRAINING]), tuple(chosen[TRAINING:]))


def other_instances(random: Random, number: int) -> Iterator[Instance]:
    """Instances that are no tasks of the demo: what the policy has learned from before."""
    return draw(random, number, without=demo_tasks().names)
