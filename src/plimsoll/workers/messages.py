"""What a run's controller and its workers say to each other."""

import msgspec

from plimsoll.core.versions import Version
from plimsoll.workers.place import Coming, News, Order, Result

__all__ = [
    "AskEnvironment",
    "Beat",
    "Begin",
    "Cancel",
    "Drain",
    "Environment",
    "Expect",
    "Failed",
    "Finished",
    "FromWorker",
    "GroupOver",
    "Hello",
    "NewVersion",
    "News",
    "Paused",
    "Ready",
    "Run",
    "Stop",
    "Taken",
    "ToWorker",
    "WorkerSpec",
]


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is started with."""

    run: str
    maker: str
    """The maker of its place, as `module:function`."""
    options: msgspec.Raw
    """The maker's options."""
    concurrency: int
    """Tickets that it runs at once."""
    memory_mb: int | None = None
    """Above this it takes no more tickets, and is replaced when it is empty."""
    beat_seconds: float = 0.5
    trim_seconds: float = 10.0
    grace_seconds: float = 30.0
    """What runs has so long when the worker itself is asked to end by a signal."""
    environment: dict[str, str] = {}
    """Variables that it needs: a shell's export does not reach the workers of a cluster."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The answer to a worker's hello: make your place."""

    spec: WorkerSpec


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run a ticket."""

    order: Order


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Give a ticket up. Its result comes all the same: void, cancelled."""

    ticket: str
    reason: str


class GroupOver(msgspec.Struct, frozen=True, tag="group_over"):
    """Nothing of a group is needed any more."""

    group: str


class Expect(msgspec.Struct, frozen=True, tag="expect"):
    """What a worker is given next, without what it was given. It replaces the one before."""

    coming: tuple[Coming, ...]


class NewVersion(msgspec.Struct, frozen=True, tag="new_version"):
    """The policy generates with these weights from now on."""

    version: Version


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """The policy is paused for new weights, or goes on."""

    paused: bool
    drains: bool = False
    """It still answers the requests that it was sent before the pause."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take no more; what runs has so many seconds, then it is cancelled; then end."""

    grace: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End at once, with nothing left behind."""


ToWorker = Begin | Run | Cancel | GroupOver | Expect | NewVersion | Paused | Drain | Stop


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker has started, and asks what it is to be."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's place is made; it takes tickets."""

    worker: str
    host: str
    pid: int
    rss_mb: float = 0.0
    """What it takes before its first ticket."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """A ticket runs."""

    ticket: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A ticket has come to its end."""

    result: Result


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker cannot start, or cannot go on: its last words."""

    words: str


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """That a worker lives, said by a thread that does not wait for its loop."""

    number: int
    rss_mb: float
    lag: float
    """For how many seconds its loop has not come round."""
    slowest: float = 0.0
    """The longest that its loop took to come round since the last beat, in seconds."""
    running: int
    counts: dict[str, int] = {}
    """What is alive, by kind, as the loop last saw it."""
    full: bool = False
    """It is above its memory limit, or was asked to end by a signal: it takes no more."""


class AskEnvironment(msgspec.Struct, frozen=True, tag="ask_environment"):
    """A host is about to start a worker, and asks for its environment variables."""


class Environment(msgspec.Struct, frozen=True, tag="environment"):
    """The answer to `AskEnvironment`."""

    variables: dict[str, str]


FromWorker = Hello | Ready | Taken | Finished | Failed | Beat | News
