"""The workers of a run, their status, and the tickets that each of them runs."""

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from plimsoll.trials.verdicts import Cause, Void
from plimsoll.workers.engines.protocol import Exit, Placed
from plimsoll.workers.messages import Beat, Kind, Order, Result

__all__ = ["Job", "Roster", "WorkerEntry", "WorkerState", "WorkerStatus", "WorkerTimeouts"]


class WorkerState(StrEnum):
    """The state of a worker in its lifecycle."""

    STARTING = "starting"
    """Started, but not ready yet."""
    READY = "ready"
    FULL = "full"
    """Above its memory limit: it finishes its running tickets, then ends."""
    ENDING = "ending"
    """Asked to end, or about to be killed."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The displayed status of a worker."""

    worker: str
    phase: WorkerState
    where: str
    """A process id or a node; empty before placement."""
    host: str = ""
    running: int = 0
    """Running tickets."""
    finished: int = 0
    up_seconds: float = 0.0
    """Seconds since it was placed on a host."""
    waited_seconds: float = 0.0
    """Seconds that it waited for a host, so far or in total."""
    silent_seconds: float = 0.0
    """Seconds since its last heartbeat."""
    rss_mb: float = 0.0
    lag: float = 0.0
    """The longest event loop lag since the previous status, in seconds."""
    counts: dict[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimeouts:
    """Time limits for a worker, in seconds."""

    dead_after: float = 5.0
    """The time without a heartbeat after which it counts as dead."""
    hung_after: float = 60.0
    """The time with a blocked event loop, while heartbeats still arrive."""
    start_within: float = 120.0
    """The time from placement on a host until it is ready."""
    end_within: float = 10.0
    """The time for cleaning up after a request to end. Then it is killed."""


class Job:
    """An order and the future of its result. It is resolved once; later results are dropped."""

    def __init__(self, order: Order) -> None:
        loop = asyncio.get_running_loop()
        self.order = order
        self.result: asyncio.Future[Result] = loop.create_future()
        self.worker = ""
        """The worker that runs it; empty while it waits for a free slot."""
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
class WorkerEntry:
    """A worker, from its invitation to its end."""

    worker: str
    state: WorkerState = WorkerState.STARTING
    life: asyncio.Task[Exit] | None = None
    placed: Placed | None = None
    connected: bool = False
    """It has sent its hello, so messages reach it."""
    ready: bool = False
    """It has reported that it is ready."""
    host: str = ""
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    expected: Counter[Kind] = field(default_factory=Counter[Kind])
    """Its share of the next orders, which it prewarms for."""
    taken: int = 0
    finished: int = 0
    beat: Beat | None = None
    slowest: float = 0.0
    """The longest event loop lag since the last call of `status`."""
    give_up_reason: str = ""
    """The reason for giving it up; empty if its end was requested."""
    up: float = 0.0
    """Seconds since it was placed on a host."""
    waited: float = 0.0
    """Seconds that it has waited for a host."""
    silent: float = 0.0
    left: float | None = None
    """Seconds left to exit by itself after a request to end; None without such a request."""

    @property
    def where(self) -> str:
        return self.placed.where if self.placed is not None else ""

    @property
    def is_waiting(self) -> bool:
        """True while its engine looks for a host for it."""
        if self.state is not WorkerState.STARTING or self.placed is None:
            return False
        return not self.placed.is_placed

    def give(self, job: Job) -> None:
        """Record that it was given a ticket. The worker counts an expected one down by itself."""
        kind = job.order.kind
        job.worker = self.worker
        self.jobs[job.order.ticket] = job
        self.taken += 1
        if self.expected[kind]:
            self.expected[kind] -= 1

    def pass_time(self, seconds: float) -> None:
        if self.placed is None or not self.placed.is_placed:
            self.waited += seconds
        else:
            self.up += seconds
        self.silent += seconds
        if self.left is not None:
            self.left -= seconds

    def fault(self, timeouts: WorkerTimeouts) -> str:
        """The reason to give up this worker; empty if it is healthy."""
        if self.state is WorkerState.STARTING and self.up > timeouts.start_within:
            return (
                f"it did not answer within {timeouts.start_within:g} s of its placement; where "
                "its host is that slow, raise [workers] start_seconds"
            )
        if self.beat is None:
            return ""
        if self.silent > timeouts.dead_after:
            return f"no heartbeat for {self.silent:.1f} s"
        if self.beat.lag > timeouts.hung_after:
            return f"its event loop is blocked for {self.beat.lag:.0f} s"
        return ""

    def record_beat(self, beat: Beat) -> None:
        """Record a heartbeat."""
        self.beat = beat
        self.silent = 0.0
        self.slowest = max(self.slowest, beat.slowest, beat.lag)

    def status(self) -> WorkerStatus:
        """The current status. Its lag covers the time since the previous call."""
        slowest, self.slowest = self.slowest, self.beat.lag if self.beat else 0.0
        return WorkerStatus(
            worker=self.worker,
            phase=self.state,
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
    """All workers. The next ticket goes to the least loaded ready one."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._entries: dict[str, WorkerEntry] = {}

    def __iter__(self) -> Iterator[WorkerEntry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: WorkerEntry) -> None:
        self._entries[entry.worker] = entry

    def find(self, worker: str) -> WorkerEntry | None:
        return self._entries.get(worker)

    def remove(self, entry: WorkerEntry) -> None:
        self._entries.pop(entry.worker, None)

    @property
    def active(self) -> int:
        """The number of workers that take tickets or will do so."""
        return sum(
            e.state in (WorkerState.STARTING, WorkerState.READY) for e in self._entries.values()
        )

    @property
    def free(self) -> int:
        """The number of free slots."""
        return sum(self._concurrency - len(entry.jobs) for entry in self._ready)

    @property
    def slots(self) -> int:
        """The number of slots of ready workers, free or not."""
        return self._concurrency * len(self._ready)

    def least_busy(self, kind: Kind) -> WorkerEntry | None:
        """The least loaded worker with a free slot; ties go to workers that expect this kind."""
        least = min(self._ready, key=lambda e: (len(e.jobs), not e.expected[kind]), default=None)
        return least if least is not None and len(least.jobs) < self._concurrency else None

    def expect(self, kinds: Iterable[Kind]) -> Mapping[str, tuple[Kind, ...]]:
        """Distribute the next orders, at most a worker's slots to each. Returns changed shares.

        The first worker with a free slot cannot be predicted. So kinds are distributed, not
        tickets, and a share stays with its worker as long as its orders are still due: moving it
        would make one worker close a sandbox that another starts.
        """
        due = Counter(kinds)
        left = due.copy()
        before = {entry: +entry.expected for entry in self._entries.values()}
        # The smallest first: orders that are no longer due leave the largest shares.
        for entry, share in sorted(before.items(), key=lambda item: item[1].total()):
            entry.expected = share & left if entry.state is WorkerState.READY else Counter[Kind]()
            left -= entry.expected
        smallest = [(e.expected.total(), number, e) for number, e in enumerate(self._ready)]
        heapq.heapify(smallest)
        for kind in left.elements():
            if not smallest or smallest[0][0] >= self._concurrency:
                break
            total, number, entry = smallest[0]
            entry.expected[kind] += 1
            heapq.heapreplace(smallest, (total + 1, number, entry))
        return {
            entry.worker: tuple(kind for kind in due for _ in range(entry.expected[kind]))
            for entry, share in before.items()
            if entry.expected != share
        }

    @property
    def _ready(self) -> list[WorkerEntry]:
        """The workers that take tickets now."""
        return [e for e in self._entries.values() if e.state is WorkerState.READY]
