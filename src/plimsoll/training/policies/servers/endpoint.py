"""Small HTTP calls to a server that takes weights: bounded, and without redirects."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from plimsoll.core.errors import PolicyError
from plimsoll.gateway.upstreams.failures import from_exception, from_status, garbage
from plimsoll.gateway.upstreams.openai import CONNECTION_ERRORS

__all__ = ["Endpoint"]

CONNECT_SECONDS = 10.0
QUICK_SECONDS = 30.0
"""For what needs no work: a busy engine may be in the middle of a step."""
ANSWER_BYTES = 1 << 20

_T = TypeVar("_T")


class Endpoint:
    """The routes of one server, below its URL without `/v1`."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, key: str | None, *, missing: str
    ) -> None:
        self.url = url
        self.stuck = ""
        """The route that was waited for when it was given up."""
        self._http = http
        self._base = url.removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._missing = missing
        """What to do about a route that the server does not have."""

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
        """`within` is left out for work that takes long: the caller bounds it."""
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
            raise from_exception(self.url, error) from error
        if response.status in (404, 405):
            raise PolicyError(f"the policy at {self.url} has no {route}: {self._missing}")
        if response.status != 200:
            raise from_status(self.url, response.status, data)
        return data

    async def _bounded(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for data in response.content.iter_any():
            size += len(data)
            if size > ANSWER_BYTES:
                raise garbage(self.url, f"it is longer than {ANSWER_BYTES} bytes")
            parts.append(data)
        return b"".join(parts)

    def _read(self, route: str, data: bytes, form: type[_T]) -> _T:
        try:
            return msgspec.json.decode(data, type=form)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise garbage(self.url, f"{route}: {error}") from error
