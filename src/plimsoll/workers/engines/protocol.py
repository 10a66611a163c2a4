"""The engine interface: start a worker somewhere, end it, and observe its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Credentials", "Engine", "Exit", "Invitation", "Placed", "StartRequest"]


@dataclass(frozen=True, slots=True)
class Invitation:
    """The supervisor's address. It holds no secret, so an engine may send it anywhere."""

    worker: str
    address: str
    """The supervisor's address, reachable from the worker's host."""
    server_key: str
    """The supervisor's public key: the worker accepts no other peer."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An invitation and the key pair of its worker, made on the worker's host.

    The secret key stays on that host: the worker's process receives it through a pipe.
    """

    invitation: Invitation
    public_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def make(cls, invitation: Invitation) -> Self:
        # Imported here: a controller without worker processes needs no sockets.
        import zmq

        public, secret = zmq.curve_keypair()
        return cls(invitation, public.decode(), secret.decode())


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A worker to start."""

    invitation: Invitation
    environment: dict[str, str] = field(repr=False)
    """Environment variables of the worker. They may be secrets: an engine that starts processes
    on another host does not send them; that host fetches them over the channel
    (`fetch_environment`)."""
    admit: Callable[[str], None] = field(repr=False)
    """Admits the worker with this public key. Called before its process is started."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a worker."""

    how: str
    """A message: `exit 1`, `killed by signal 9`, `its node is gone`."""
    output: str = ""
    """The last lines of its output."""
    killed: bool = False
    """An external cause ended it, so a replacement may succeed."""


class Placed(Protocol):
    """A worker that an engine has started."""

    @property
    def where(self) -> str:
        """A process id or a node, for display."""
        ...

    @property
    def is_placed(self) -> bool:
        """True once it has a host. The time limit for its start begins then."""
        ...

    async def ended(self) -> Exit:
        """Wait for its end. Several callers may wait at once."""
        ...

    async def kill(self) -> None:
        """Kill it now. It has ended when this returns."""
        ...


class Engine(Protocol):
    """Starts workers. An async context manager: leaving it leaves no worker behind."""

    @property
    def host(self) -> str:
        """The address of this host as its workers reach it. Known on entry."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def start(self, request: StartRequest) -> Placed:
        """Start a worker. Returns before it is up: its hello or its end shows the outcome."""
        ...

    def describe_wait(self, workers: int) -> str:
        """A message about this many workers that wait for a host."""
        ...
