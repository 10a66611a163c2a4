"""What a backend has made and not yet removed: for `ps`, `clean` and the reaper."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from plimsoll.core.ids import Labels

__all__ = ["KINDS", "Inventory", "Item", "Kind"]

Kind = Literal["sandbox", "network", "volume", "image"]

KINDS: tuple[Kind, ...] = ("sandbox", "network", "volume", "image")
"""In the order in which they are removed: what uses something goes before it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing on a host or an engine, with the labels that say whose it is."""

    kind: Kind
    id: str
    labels: Labels
    name: str = ""
    """What people call it, where that is not its id: an image's tag."""
    state: str = ""
    """As its backend names it: running, exited."""
    created: float | None = None
    ended: float | None = None
    """When a sandbox ended whose owner cannot be asked. It ends with its owner's stream, and
    nothing can be had of it without."""
    shared: bool = False
    """It serves many runs and outlives its owner, until it expires."""
    used_by: tuple[str, ...] = ()
    """Ids of the sandboxes, and names of others' containers, that hold on to it."""


class Inventory(Protocol):
    """Lists and removes, and starts nothing: entering it changes nothing."""

    @property
    def name(self) -> str:
        """The backend's name."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def items(self) -> Sequence[Item]:
        """Everything with our labels, whoever made it."""
        ...

    async def remove(self, item: Item) -> None:
        """Remove it with all that is in it. What is gone already is no error.

        What cannot be removed is a `SandboxError` that says why.
        """
        ...
