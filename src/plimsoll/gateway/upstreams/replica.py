"""One server among several: its load, and whether it is trusted with requests now."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from plimsoll.gateway.forms import Answer, Request
from plimsoll.gateway.upstreams.failures import Failed
from plimsoll.gateway.upstreams.openai import Server
from plimsoll.gateway.upstreams.protocol import Call

__all__ = ["Replica", "ReplicaState"]

FAILURES_IN_A_ROW = 3
"""So many answers that speak against a server, and it is cooled down. A connection that fails
is enough by itself."""
COOL_FIRST = 1.0
COOL_MOST = 30.0
"""Less than a request waits for a replica: none gives up before one was looked at again."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as metrics and health pages show it."""

    url: str
    up: bool = True
    in_flight: int = 0
    answered: int = 0
    failures: int = 0
    cooled: int = 0
    """How often it was cooled down."""
    last_failure: str = ""


class Replica:
    """Counts what happens to a server. Times are those of the event loop's clock."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.in_flight = 0
        self.chosen = 0
        """When it was last given a new session, counted in sessions."""
        self.up = True
        self.not_before = 0.0
        """Until then it is left alone: it is cooled down, or asked for time itself."""
        self.heard = 0.0
        """When it last answered."""
        self._answered = 0
        self._failures = 0
        self._in_a_row = 0
        self._cooled = 0
        self._cool_next = COOL_FIRST
        self._last_failure = ""

    @property
    def state(self) -> ReplicaState:
        return ReplicaState(
            url=self.server.url,
            up=self.up,
            in_flight=self.in_flight,
            answered=self._answered,
            failures=self._failures,
            cooled=self._cooled,
            last_failure=self._last_failure,
        )

    def ready(self, now: float) -> bool:
        return self.up and now >= self.not_before

    async def answer(self, request: Request, call: Call) -> Answer:
        self.in_flight += 1
        try:
            return await self.server.answer(request, call)
        finally:
            self.in_flight -= 1

    @contextmanager
    def busy(self) -> Generator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def answered(self, now: float) -> None:
        """What it was asked for, it did: whatever was held against it is forgotten."""
        self._answered += 1
        self.well(now)
        self.not_before = 0.0
        self._in_a_row = 0
        self._cool_next = COOL_FIRST

    def well(self, now: float) -> None:
        """It says that it serves, and may be asked. What it failed at is not made up for by that:
        a server may be healthy and answer nobody."""
        self.heard = now
        self.up = True

    def failed(self, failure: Failed, now: float) -> None:
        if failure.kind in ("bad_request", "context_length", "unsupported"):
            self.heard = now
            return
        self._failures += 1
        self._last_failure = failure.message
        if failure.after is not None:
            self.not_before = max(self.not_before, now + min(failure.after, COOL_MOST))
        if failure.down:
            self._in_a_row += 1
            # Requests that fail together, once it is down, say nothing new of it.
            if self.up and (failure.again or self._in_a_row >= FAILURES_IN_A_ROW):
                self.cool(now)

    def unwell(self, problem: str, now: float) -> None:
        """A check found that it does not serve. What took it down before is still the reason."""
        if self.up:
            self._last_failure = problem
        self.cool(now)

    def warm(self) -> None:
        """It may be checked or asked at once, and is cooled down from the start again."""
        self.not_before = 0.0
        self._cool_next = COOL_FIRST

    def cool(self, now: float) -> None:
        """Takes it out until a check finds it well; each time it is left alone for longer."""
        if self.up:
            self._cooled += 1
        self.up = False
        self.not_before = max(self.not_before, now + self._cool_next)
        self._cool_next = min(self._cool_next * 2, COOL_MOST)
