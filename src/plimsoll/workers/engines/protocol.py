"""What an engine does: start a worker somewhere, end it, and see it end."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Engine", "Exit", "Invitation", "Placed"]


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a worker is told so that it finds the supervisor that started it."""

    worker: str
    address: str
    """Where the supervisor listens, reachable from where the worker runs."""
    server_key: str
    """The supervisor's public key: nobody else is listened to."""
    public_key: str
    secret_key: str = field(repr=False)
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended."""

    how: str
    """For a person: `exit 1`, `killed by signal 9`, `its node is gone`."""
    words: str = ""
    """The last lines that it printed."""
    killed: bool = False
    """Something else ended it, so that another may fare better."""


class Placed(Protocol):
    """A worker that an engine has started."""

    @property
    def worker(self) -> str: ...

    @property
    def where(self) -> str:
        """For a person: a process id, a node."""
        ...

    async def ended(self) -> Exit:
        """Wait for its end. May be called by several at once."""
        ...

    async def kill(self) -> None:
        """End it now, whatever it does. It has ended when this returns."""
        ...


class Engine(Protocol):
    """Starts workers. An async context manager: leaving it leaves no worker behind."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str:
        """The address of this host that its workers reach. Known once it is entered."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def start(self, invitation: Invitation) -> Placed:
        """Returns as soon as it is on its way; whether it comes is seen by its hello or its end."""
        ...
