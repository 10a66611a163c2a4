"""HTTP calls to an inference server that takes weights, and a pause that always ends.

Calls are bounded in time and size and follow no redirects.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import PolicyError
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.upstreams.failures import (
    UpstreamFailure,
    failure_from_exception,
    failure_from_status,
    invalid_answer,
)
from plimsoll.gateway.upstreams.openai_server import CONNECTION_ERRORS

__all__ = ["Endpoint", "paused", "resume_server"]

CONNECT_SECONDS = 10.0
QUICK_SECONDS = 30.0
"""For calls that need no work: a busy server may be in the middle of a step."""
ANSWER_BYTES = 1 << 20

_T = TypeVar("_T")


class Endpoint:
    """The routes of one server, below its URL without `/v1`."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, key: str | None, *, missing: str
    ) -> None:
        self.url = url
        self.stuck = ""
        """The route of the call that was cancelled."""
        self._http = http
        self._base = url.removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._missing = missing
        """Advice for a route that the server does not have."""

    async def get(self, route: str, form: type[_T]) -> _T:
        return self._read(route, await self._ask("GET", route, within=QUICK_SECONDS), form)

    async def post(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        within: float | None = None,
    ) -> bytes:
        """Send a POST. Long work has no `within`: the caller sets the time limit."""
        return await self._ask("POST", route, body, query, within)

    async def post_for(self, route: str, body: Mapping[str, Any], form: type[_T]) -> _T:
        return self._read(route, await self.post(route, body), form)

    async def _ask(
        self,
        method: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        within: float | None = None,
    ) -> bytes:
        try:
            async with self._http.request(
                method,
                f"{self._base}{route}",
                params=query,
                data=None if body is None else msgspec.json.encode(body),
                headers={**self._headers, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(within, sock_connect=CONNECT_SECONDS),
                allow_redirects=False,
            ) as response:
                data = await self._bounded(response)
        except asyncio.CancelledError:
            self.stuck = route
            raise
        except CONNECTION_ERRORS as error:
            raise failure_from_exception(self.url, error) from error
        if response.status in (404, 405):
            raise PolicyError(f"the policy at {self.url} has no {route}: {self._missing}")
        if response.status != 200:
            raise failure_from_status(self.url, response.status, data)
        return data

    async def _bounded(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for data in response.content.iter_any():
            size += len(data)
            if size > ANSWER_BYTES:
                raise invalid_answer(self.url, f"it is longer than {ANSWER_BYTES} bytes")
            parts.append(data)
        return b"".join(parts)

    def _read(self, route: str, data: bytes, form: type[_T]) -> _T:
        try:
            return msgspec.json.decode(data, type=form)
        except DECODE_ERRORS as error:
            raise invalid_answer(self.url, f"{route}: {error}") from error


log = logging.getLogger(__name__)

RESUME_TRIES = 3
RESUME_RETRY_SECONDS = 0.5


@asynccontextmanager
async def paused(
    pause: Callable[[], Awaitable[object]], resume: Callable[[], Awaitable[object]]
) -> AsyncGenerator[None]:
    """Pause a server for the block. `resume` runs also after an error or a cancellation, even
    during `pause`, which the server may have received. It must have its own time limit."""
    problem = ""
    try:
        await pause()
        yield
    finally:
        problem = await run_to_completion(_resumed(resume))
    if problem:
        raise PolicyError(problem)


async def resume_server(resume: Callable[[], Awaitable[object]]) -> None:
    """Resume a server that a killed trainer may have left paused."""
    problem = await _resumed(resume)
    if problem:
        raise PolicyError(problem)


async def _resumed(resume: Callable[[], Awaitable[object]]) -> str:
    """Resume a server. Returns the reason of a failure, or an empty text."""
    problem = ""
    for _ in range(RESUME_TRIES):
        try:
            await resume()
        except (UpstreamFailure, PolicyError) as error:
            problem = f"{error}; it may still be paused"
            if not (isinstance(error, UpstreamFailure) and error.retryable):
                break
            await asyncio.sleep(RESUME_RETRY_SECONDS)
        else:
            return ""
    # Logged here too: the caller may raise another error instead.
    log.warning("%s", problem)
    return problem
