"""How a worker fares, as far as its supervisor knows.

The workers of a run, and which ticket is with which of them.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.engines.protocol import Exit, Placed
from plimsoll.workers.messages import Beat, Order, Result

__all__ = ["Job", "Member", "Patience", "Phase", "Roster", "WorkerStatus"]


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    """On its way: it has not answered yet."""
    READY = "ready"
    FULL = "full"
    """Above its memory limit: it finishes what it has, and then ends."""
    ENDING = "ending"
    """Asked to end, or about to be killed."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a worker."""

    worker: str
    phase: Phase
    where: str
    """A process id, a node; empty as long as it has none."""
    host: str = ""
    running: int = 0
    """Tickets that it has."""
    finished: int = 0
    up_seconds: float = 0.0
    """Since it was placed on a host."""
    waited_seconds: float = 0.0
    """How long it waited for a host, or has waited so far."""
    silent_seconds: float = 0.0
    """Since its last beat."""
    rss_mb: float = 0.0
    lag: float = 0.0
    """The longest that its loop took to come round since the status before, in seconds."""
    counts: dict[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a worker is waited for, in seconds."""

    dead_after: float = 5.0
    """Without a beat."""
    hung_after: float = 60.0
    """With a loop that does not come round, though it beats."""
    start_within: float = 120.0
    """From its placement on a host until it answers that it is ready."""
    end_within: float = 10.0
    """For a worker that was asked to end, to clean up. Then it is killed."""


class Job:
    """An order, and whoever waits for its result. It is resolved once; later words are lost."""

    def __init__(self, order: Order) -> None:
        loop = asyncio.get_running_loop()
        self.order = order
        self.result: asyncio.Future[Result] = loop.create_future()
        self.worker = ""
        """Who has it; empty as long as it waits for a place."""
        self._since = loop.time()

    def resolve(self, result: Result) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def void(self, cause: Cause, reason: str) -> None:
        seconds = asyncio.get_running_loop().time() - self._since
        verdict = Void(cause, reason)
        self.resolve(Result(ticket=self.order.ticket, verdict=verdict, seconds=seconds))

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


@dataclass(slots=True, eq=False)
class Member:
    """A worker, from its invitation to its end."""

    worker: str
    phase: Phase = Phase.STARTING
    life: asyncio.Task[Exit] | None = None
    placed: Placed | None = None
    greeted: bool = False
    """It has said hello, so it hears what it is told."""
    ready: bool = False
    """It has answered."""
    host: str = ""
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    taken: int = 0
    finished: int = 0
    beat: Beat | None = None
    slowest: float = 0.0
    """The longest that its loop took to come round since its status was last asked for."""
    doom: str = ""
    """Why it is killed, where that was not asked for."""
    up: float = 0.0
    """Seconds since it was placed on a host."""
    waited: float = 0.0
    """Seconds that it has waited for a host."""
    silent: float = 0.0
    left: float | None = None
    """Seconds that it has to end by itself, where it was asked to."""

    @property
    def where(self) -> str:
        return self.placed.where if self.placed is not None else ""

    @property
    def is_waiting(self) -> bool:
        """Whether its engine looks for a host for it."""
        if self.phase is not Phase.STARTING or self.placed is None:
            return False
        return not self.placed.is_placed

    def pass_time(self, seconds: float) -> None:
        if self.placed is None or not self.placed.is_placed:
            self.waited += seconds
        else:
            self.up += seconds
        self.silent += seconds
        if self.left is not None:
            self.left -= seconds

    def fault(self, patience: Patience) -> str:
        """Why it cannot be waited for any longer; empty where it can."""
        if self.phase is Phase.STARTING and self.up > patience.start_within:
            return (
                f"it did not answer within {patience.start_within:g} s of its placement; where "
                "its host is that slow, raise [workers] start_seconds"
            )
        if self.beat is None:
            return ""
        if self.silent > patience.dead_after:
            return f"no sign of life for {self.silent:.1f} s"
        if self.beat.lag > patience.hung_after:
            return f"its loop has not come round for {self.beat.lag:.0f} s"
        return ""

    def feel(self, beat: Beat) -> None:
        """A beat has come."""
        self.beat = beat
        self.silent = 0.0
        self.slowest = max(self.slowest, beat.slowest, beat.lag)

    def status(self) -> WorkerStatus:
        """How it fares. What is told of its slowest turn is of the time since this was last
        asked."""
        slowest, self.slowest = self.slowest, self.beat.lag if self.beat else 0.0
        return WorkerStatus(
            worker=self.worker,
            phase=self.phase,
            where=self.where,
            host=self.host,
            running=len(self.jobs),
            finished=self.finished,
            up_seconds=self.up,
            waited_seconds=self.waited,
            silent_seconds=self.silent,
            rss_mb=self.beat.rss_mb if self.beat else 0.0,
            lag=slowest,
            counts=self.beat.counts if self.beat else {},
        )


class Roster:
    """Who is there. The least busy of those that are ready is given the next ticket."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        self._members[member.worker] = member

    def find(self, worker: str) -> Member | None:
        return self._members.get(worker)

    def remove(self, member: Member) -> None:
        self._members.pop(member.worker, None)

    @property
    def staffed(self) -> int:
        """Workers that take tickets, or will."""
        return sum(m.phase in (Phase.STARTING, Phase.READY) for m in self._members.values())

    @property
    def free(self) -> int:
        """Tickets that could be given out now."""
        ready = (m for m in self._members.values() if m.phase is Phase.READY)
        return sum(self._concurrency - len(member.jobs) for member in ready)

    @property
    def slots(self) -> int:
        """Tickets that can be run at once now, whether they are or not."""
        return self._concurrency * len(self.ready)

    @property
    def ready(self) -> list[str]:
        """The workers that take tickets now."""
        return [m.worker for m in self._members.values() if m.phase is Phase.READY]

    def least_busy(self, rather: Collection[str] = ()) -> Member | None:
        """Who has room and least to do; of those that have as little, rather one of these."""
        ready = [m for m in self._members.values() if m.phase is Phase.READY]
        least = min(ready, key=lambda m: (len(m.jobs), m.worker not in rather), default=None)
        return least if least is not None and len(least.jobs) < self._concurrency else None
