"""What a worker runs tickets in: sandboxes, an agent, a gateway. Made where the worker runs.

A worker knows tickets, not what is done for them. It makes its place from a name and options,
both of which travel as text to wherever an engine starts it.
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.core.versions import Version
from plimsoll.ledger.events import Segment
from plimsoll.sandboxes.pool.stats import Readings
from plimsoll.trials.verdicts import Verdict

__all__ = ["Coming", "Kind", "News", "Order", "Place", "PlaceMaker", "Result", "find_maker"]


class Kind(msgspec.Struct, frozen=True):
    """What orders have in common that need the same things: the fields are those of `Order`."""

    task: str
    name: str = ""
    agent: str = ""


class Coming(msgspec.Struct, frozen=True):
    """So many orders of a kind are about to be given."""

    kind: Kind
    count: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket, with all that a worker needs to run it."""

    ticket: str
    """Its name in the ledger; a retry has another."""
    group: str
    task: str
    """The task's folder."""
    name: str = ""
    """The task's name in the run; that of its folder where it is left out."""
    attempt: int
    folder: str
    """Where its trial writes, unless there is such a folder already."""
    rollout: str = ""
    """The name that its seeds are made of, where the policy has a seed: two orders of one name
    are answered alike."""
    agent: str = ""
    """Who acts, where it is not the run's one agent: a canary's is the oracle."""

    @property
    def kind(self) -> Kind:
        return Kind(self.task, self.name, self.agent)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a ticket. The trajectory itself is in storage, never in a message."""

    ticket: str
    verdict: Verdict
    seconds: float
    phases: dict[str, float] = {}
    trial: str = ""
    """The trial's id; empty where there was none."""
    folder: str = ""
    """Where the trial wrote, where that is not the order's folder."""
    trajectory: str = ""
    """Where it is: relative to the run directory, or else a whole fsspec path; empty where there
    is none."""
    segments: tuple[Segment, ...] = ()


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="news"):
    """What is new about a worker's sandboxes since it last told. It does not grow with time."""

    warnings: tuple[str, ...] = ()
    sandboxes: Readings = Readings()


class Place(Protocol):
    """Runs tickets at the same time on one event loop. What a ticket held is gone at its end."""

    async def run(self, order: Order) -> Result:
        """Never raises for a bad trial: that is a void verdict. Cancelling it cleans up."""
        ...

    async def group_over(self, group: str) -> None:
        """Nothing of the group is needed any more."""
        ...

    def expect(self, coming: Sequence[Coming]) -> None:
        """These orders come next, those that were given not among them. It replaces what was
        said before: what is not among them is not kept ready for."""
        ...

    def set_version(self, version: Version) -> None:
        """What the policy generates from now on is of this version."""
        ...

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """The policy is paused for new weights, or goes on: see `Paused`."""
        ...

    def news(self) -> News | None:
        """What is new since this was last asked; None where nothing is."""
        ...

    def counts(self) -> dict[str, int]:
        """What is alive, by kind: sandboxes, sessions, trajectories, requests."""
        ...


PlaceMaker = Callable[[msgspec.Raw], AbstractAsyncContextManager[Place]]
"""Makes a place from its options, which are JSON."""


def find_maker(name: str) -> PlaceMaker:
    """The maker that `module:function` names."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"a worker cannot find {name}: {error}") from error
