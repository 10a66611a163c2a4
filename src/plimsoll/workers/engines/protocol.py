"""What an engine does: start a worker somewhere, end it, and see it end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Credentials", "Engine", "Exit", "Invitation", "Opening", "Placed"]


@dataclass(frozen=True, slots=True)
class Invitation:
    """The supervisor's address. It holds no secret, so an engine may send it anywhere."""

    worker: str
    address: str
    """Where the supervisor listens, reachable from where the worker runs."""
    server_key: str
    """The supervisor's public key: nobody else is listened to."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An invitation and the key pair of its worker, made on the worker's host.

    The secret key stays on that host: it goes to the worker's process by a pipe.
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
class Opening:
    """A worker to be started."""

    invitation: Invitation
    environment: dict[str, str] = field(repr=False)
    """Its environment variables. They may be secrets: an engine that starts processes elsewhere
    does not send them, but has that host fetch them over the channel (`fetch_environment`)."""
    admit: Callable[[str], None] = field(repr=False)
    """Lets in the worker that has this public key. Called before its process is started."""


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

    @property
    def is_placed(self) -> bool:
        """Whether a host was found for it. The time limit for its start begins then."""
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

    async def start(self, opening: Opening) -> Placed:
        """Returns as soon as it is on its way; whether it comes is seen by its hello or its end."""
        ...

    def describe_wait(self, workers: int) -> str:
        """What so many workers that are not placed yet wait for, for a person."""
        ...
