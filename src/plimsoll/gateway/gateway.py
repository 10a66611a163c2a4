"""The gateway: an HTTP server, its sessions, and the upstream they call."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from plimsoll.core.ids import short_id
from plimsoll.gateway.completions import Answer, Refusal
from plimsoll.gateway.http.handler import FallbackHandler, GatewayHandler
from plimsoll.gateway.http.idle_connections import IdleConnections
from plimsoll.gateway.http.server import HttpServer, Listen
from plimsoll.gateway.metrics import Metrics
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.pending_request import PendingRequest
from plimsoll.gateway.sessions.registry import SessionRegistry
from plimsoll.gateway.sessions.seeds import Seeds
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.gate import Pauses
from plimsoll.gateway.upstreams.protocol import Upstream
from plimsoll.trajectories.recorder import Recorder

__all__ = ["Gateway"]

log = logging.getLogger(__name__)

MAINTENANCE_SECONDS = 1.0
PING_SECONDS = 5.0
"""A client whose stream is silent for this long is sent a ping."""

DEFAULT_MODEL = "policy"
"""The model's name that an agent is given, unless the session has another."""


class Gateway:
    """Serves sessions inside its `async with` block, and ends them all on exit.

    The caller owns the upstream: it outlives the gateway, which never closes it. `pauses` are the
    upstream's pauses for new weights; session clocks stop during a pause.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        pauses: Pauses | None = None,
        listen: Listen | None = None,
        fallback: FallbackHandler | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.sessions = SessionRegistry()
        self._upstream = upstream
        self._pauses = pauses or Pauses()
        idle = IdleConnections()
        handler = GatewayHandler(self.sessions, self.metrics, idle, fallback)
        self._server = HttpServer(handler, idle, listen or Listen())
        self._maintenance: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._server.port

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._maintenance = asyncio.create_task(self._maintain())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._maintenance is not None
        self._server.stop_listening()
        results = await asyncio.gather(
            *(session.end() for session in self.sessions), return_exceptions=True
        )
        for failed in results:
            if isinstance(failed, BaseException):
                log.error("a session could not be ended: %s", failed)
        self._maintenance.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._maintenance
        await self._server.close()

    async def open(
        self,
        folder: Path,
        *,
        blobs: Path,
        limits: Limits | None = None,
        about: Mapping[str, str] | None = None,
        model: str | None = None,
        seed: str = "",
        id: str = "",
    ) -> Session:
        """Open a session that records its trajectory in `folder`.

        Sessions with the same `seed` send the same sampling seeds, in the order of their requests.
        """
        id = id or short_id()
        session = Session(
            id,
            Recorder.open(folder, blobs, id, about or {}),
            self._upstream,
            self._pauses,
            limits=limits or Limits(),
            model=model or DEFAULT_MODEL,
            seeds=Seeds(seed) if seed else None,
            on_outcome=self._count,
            on_end=self.sessions.remove,
        )
        self.sessions.add(session)
        self.metrics.sessions += 1
        return session

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection that comes from inside a sandbox."""
        await self._server.connect(reader, writer)

    def _count(self, pending: PendingRequest, outcome: Answer | Refusal, kind: str) -> None:
        metrics = self.metrics
        metrics.outcomes[(pending.dialect.name, kind)] += 1
        if kind == "internal":
            metrics.internal += 1
        metrics.seconds.add(time.monotonic() - pending.started)
        if isinstance(outcome, Answer) and outcome.usage is not None:
            metrics.prompt_tokens += outcome.usage.prompt
            metrics.answer_tokens += outcome.usage.answer

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_SECONDS)
            now = time.monotonic()
            self.metrics.last_maintenance = now
            self._server.close_idle(now)
            await self._maintain_sessions(now)

    async def _maintain_sessions(self, now: float) -> None:
        # A separate function, because a loop variable above would keep the last session alive.
        for session in self.sessions:
            await session.maintain(now, PING_SECONDS)
