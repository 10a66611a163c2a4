"""The standalone gateway: sessions opened through an admin API, trajectories in a folder."""

import asyncio
import contextlib
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import hdrs, web

from plimsoll.core.errors import PlimsollError
from plimsoll.core.ids import short_id
from plimsoll.gateway.access import key_digest, matches, new_key, request_key
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.http.handler import not_found
from plimsoll.gateway.http.replies import json_reply
from plimsoll.gateway.http.server import Listen
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.standalone.admin import Admin
from plimsoll.gateway.standalone.prometheus import CONTENT_TYPE, expose
from plimsoll.gateway.standalone.session_records import SessionRecords
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.trajectories.trajectory_file import FILE_NAME

__all__ = ["StandaloneGateway"]

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
MAX_LAG_SECONDS = 10.0
"""An event loop that lags longer than this is reported as unhealthy."""


class StandaloneGateway:
    """Serves inside its `async with` block. `admin_key` is shown to a person and stored nowhere
    else."""

    def __init__(
        self,
        upstream: Gate,
        folder: Path,
        *,
        listen: Listen,
        idle_seconds: float = 3600.0,
        admin_key: str | None = None,
        media_hosts: tuple[str, ...] = (),
    ) -> None:
        self.admin_key = admin_key or new_key()
        self.gateway = Gateway(
            upstream,
            pauses=upstream.pauses,
            listen=listen,
            fallback=self._fallback,
        )
        self._upstream = upstream
        self._folder = folder
        self._idle_seconds = idle_seconds
        self._media_hosts = media_hosts
        self._records = SessionRecords(self.gateway.sessions)
        self._digest = key_digest(self.admin_key)
        self._admin = Admin(
            self.gateway.sessions, self._records, self._open, upstream, self._digest
        )
        self._stack = AsyncExitStack()

    @property
    def port(self) -> int:
        return self.gateway.port

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.gateway)
        sweeper = asyncio.create_task(self._sweep())
        self._stack.push_async_callback(_cancel, sweeper)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _open(self, limits: Limits, about: dict[str, str], model: str | None) -> Session:
        timestamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        id = short_id()
        folder = self._folder / f"{timestamp}-{id}"
        session = await self.gateway.open(
            folder,
            blobs=self._folder / "blobs",
            limits=replace(limits, media_hosts=self._media_hosts),
            about=about,
            model=model,
            id=id,
        )
        self._records.add(session, folder / FILE_NAME)
        return session

    async def _fallback(self, http: web.BaseRequest, path: str) -> web.StreamResponse:
        if path in ("/policy", "/sessions") or path.startswith("/sessions/"):
            return await self._admin(http, path)
        if path not in ("/healthz", "/metrics"):
            raise not_found(path)
        if http.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            raise Refusal("wrong_method", f"{path} accepts GET only")
        if path == "/healthz":
            return self._health(is_admin=matches(request_key(http), self._digest))
        body = expose(self.gateway.metrics, self.gateway.sessions, self._upstream.replicas)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    def _health(self, *, is_admin: bool) -> web.Response:
        """Whether the gateway serves, for everyone; the reason and the replicas, for the admin."""
        replicas = self._upstream.replicas
        lag = time.monotonic() - self.gateway.metrics.last_maintenance
        problem = ""
        if replicas and not any(replica.up for replica in replicas):
            problem = "no replica of the policy is up"
        elif lag > MAX_LAG_SECONDS:
            problem = f"the event loop lags by {lag:.0f} s"
        report: dict[str, object] = {"ok": not problem}
        if is_admin:
            report |= {"problem": problem, "replicas": replicas}
        return json_reply(msgspec.json.encode(report), 503 if problem else 200)

    async def _sweep(self) -> None:
        """End sessions that are out of time or idle for too long."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._sweep_sessions(time.monotonic())

    async def _sweep_sessions(self, now: float) -> None:
        # A separate function, because a loop variable above would keep the last session alive.
        for session in self.gateway.sessions:
            is_idle = session.in_flight == 0 and now - session.last_used > self._idle_seconds
            if is_idle or session.out_of_time:
                try:
                    await session.end()
                except PlimsollError as error:
                    log.error("session %s could not be closed: %s", session.id, error)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
