"""The gateway: an HTTP server, its sessions, and the upstream they call."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from plimsoll.core.errors import UsageError
from plimsoll.core.ids import short_id
from plimsoll.gateway.completions import Answer, Refusal
from plimsoll.gateway.http.handler import FallbackHandler, GatewayHandler
from plimsoll.gateway.http.idle_connections import IdleConnections
from plimsoll.gateway.http.relay import relay
from plimsoll.gateway.http.server import TerseLog, raise_open_files_limit
from plimsoll.gateway.metrics import Metrics
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.pending_request import PendingRequest
from plimsoll.gateway.sessions.registry import SessionRegistry
from plimsoll.gateway.sessions.seeds import Seeds
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.upstreams.gate import Pauses
from plimsoll.gateway.upstreams.protocol import Upstream
from plimsoll.trajectories.recorder import Recorder

__all__ = ["Gateway", "Listen"]

log = logging.getLogger(__name__)

MAINTENANCE_SECONDS = 1.0
PING_SECONDS = 5.0
"""A client whose stream is silent for this long is sent a ping."""
LINGERING_SECONDS = 2.0
"""For a client to stop sending a body that was refused."""
IDLE_SECONDS = 120.0
"""Between an answer and the next request of its connection. Client libraries give an idle
connection up after 5 to 90 seconds, so none of them asks by one that is being closed."""
CLOSE_SECONDS = 2.0
READ_BYTES = 1 << 20
"""What a connection may have ready to be read before it is paused: most bodies, all of them."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the server listens. Port 0 is any that is free."""

    host: str = "127.0.0.1"
    port: int = 0


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
        model: str = "policy",
        ids: bool = True,
        listen: Listen | None = None,
        fallback: FallbackHandler | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.sessions = SessionRegistry()
        self.port = 0
        self._upstream = upstream
        self._pauses = pauses or Pauses()
        self._model = model
        self._ids = ids
        self._listen = listen or Listen()
        self._idle = IdleConnections()
        self._handler = GatewayHandler(self.sessions, self.metrics, self._idle, fallback)
        self._protocols: web.Server | None = None
        self._server: asyncio.Server | None = None
        self._maintenance: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._protocols = web.Server(
            self._handler,
            handler_cancellation=True,
            access_log=None,
            logger=TerseLog(log),
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            read_bufsize=READ_BYTES,
            lingering_time=LINGERING_SECONDS,
        )
        raise_open_files_limit()
        loop = asyncio.get_running_loop()
        where = self._listen
        try:
            self._server = await loop.create_server(
                self._serve, where.host, where.port, reuse_address=True, backlog=1024
            )
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(
                f"the gateway cannot listen on {where.host}:{where.port}: {reason}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._maintenance = asyncio.create_task(self._maintain())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None and self._protocols is not None
        assert self._maintenance is not None
        self._server.close()
        results = await asyncio.gather(
            *(session.end() for session in self.sessions), return_exceptions=True
        )
        for failed in results:
            if isinstance(failed, BaseException):
                log.error("a session could not be ended: %s", failed)
        self._maintenance.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._maintenance
        self._protocols.pre_shutdown()
        await self._protocols.shutdown(CLOSE_SECONDS)
        await self._server.wait_closed()

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
            model=model or self._model,
            ids=self._ids,
            seeds=Seeds(seed) if seed else None,
            on_outcome=self._count,
            on_end=self.sessions.remove,
        )
        self.sessions.add(session)
        self.metrics.sessions += 1
        return session

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection that comes from inside a sandbox."""
        if self._protocols is None or self._server is None or not self._server.is_serving():
            raise ConnectionRefusedError("the gateway is not open")
        await relay(reader, writer, self._serve)

    def _serve(self) -> RequestHandler:
        """The protocol of a new connection."""
        assert self._protocols is not None
        connection = self._protocols()
        self._idle.add(connection)
        return connection

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
            if self._idle and self._protocols is not None:
                self._idle.close_expired(now, self._protocols.connections)
            await self._maintain_sessions(now)

    async def _maintain_sessions(self, now: float) -> None:
        # A separate function, because a loop variable above would keep the last session alive.
        for session in self.sessions:
            await session.maintain(now, PING_SECONDS)
