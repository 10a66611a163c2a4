"""A connection to one Docker engine: calls with their limits in time, errors in our words.

It stands on aiodocker, which the aio-libs project maintains: it speaks over unix sockets, TLS
and ssh, and takes over the connection of an attached container; no `docker` command is needed.
The ordinary calls go to its session directly, for answers with types and limits in time.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import aiodocker
import aiohttp
import msgspec
from aiodocker.stream import Stream
from yarl import URL

from plimsoll.core.errors import SandboxError, SandboxUnavailable, UsageError
from plimsoll.sandboxes.docker.daemon.endpoint import Endpoint
from plimsoll.sandboxes.docker.daemon.errors import (
    DaemonError,
    DaemonUnreachable,
    connection_error,
    full_disk_error,
    is_full_disk,
    response_error,
    trimmed,
)
from plimsoll.sandboxes.docker.daemon.responses import DaemonVersion

__all__ = ["CALL_SECONDS", "AttachStream", "Body", "Client", "Params", "Progress"]

CONNECT_SECONDS = 10.0
"""How long an engine may take to answer at all."""
CALL_SECONDS = 60.0
"""How long it may take to do what it was asked to, where it is nothing long."""
_NEWEST_API = (1, 44)
"""The newest version of the API that this code was written for; every engine since has it."""

_T = TypeVar("_T")
Params = Mapping[str, str | Sequence[str]]
Body = bytes | AsyncIterable[bytes]

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call ends with that got no answer."""
_NO_CONNECTION = 900
"""aiodocker's own status, among HTTP's: as where ssh does not come through."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """More about what failed: the exit code, where it was a command."""

    code: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """One line of what the engine tells while it builds, pulls or imports."""

    stream: str = ""
    status: str = ""
    id: str = ""
    progress: str = ""
    error: str = ""
    detail: ErrorDetail = msgspec.field(default=ErrorDetail(), name="errorDetail")
    aux: dict[str, str] = {}


class AttachStream:
    """The stdin, stdout and stderr of a container, attached."""

    def __init__(self, stream: Stream, where: str) -> None:
        self._stream = stream
        self._where = where

    async def read(self) -> tuple[int, bytes] | None:
        """The next piece, with 1 for stdout and 2 for stderr; None at the end, however it came."""
        try:
            return await self._stream.read_out()
        except (aiohttp.ClientError, OSError):
            return None

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write_in(data)
        # aiodocker asserts that the connection still stands, and it may have ended just now.
        except (aiohttp.ClientError, OSError, RuntimeError, AssertionError) as error:
            raise SandboxUnavailable(
                f"the container's stream from the Docker engine at {self._where} has ended"
            ) from error

    async def close(self) -> None:
        await self._stream.close()


class Client:
    """Talks to one engine, from `async with` on."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.version = DaemonVersion()
        self._base = ""
        self._docker: aiodocker.Docker | None = None

    async def __aenter__(self) -> Self:
        """Connect, and agree on a version of the API."""
        url, connector = _connector(self.endpoint)
        # The session closes what it did not open only when told to.
        session = aiohttp.ClientSession(connector=connector, timeout=_limit(CALL_SECONDS))
        self._docker = aiodocker.Docker(url, connector=connector, session=session)
        self._base = url
        try:
            doing = "say its version"
            raw = await self.call("GET", "/version", doing, seconds=CONNECT_SECONDS)
            self.version = self._decoded(raw, DaemonVersion, doing)
            if not re.fullmatch(r"\d{1,6}\.\d{1,6}", self.version.api, re.ASCII):
                raise self._speaks_otherwise(doing, f"no version of an API: {self.version.api!r}")
        except BaseException:
            await self.close()
            raise
        self._docker.api_version = f"v{'.'.join(map(str, self.api))}"
        self._base = f"{url}/{self._docker.api_version}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()
            await docker.session.close()

    @property
    def api(self) -> tuple[int, int]:
        """The version of the API that is spoken."""
        major, _, minor = self.version.api.partition(".")
        newest = int(major), int(minor)
        return min(newest, _NEWEST_API)

    async def get(self, path: str, kind: type[_T], doing: str, params: Params | None = None) -> _T:
        """A `GET`, its answer read as `kind`."""
        return self._decoded(await self.call("GET", path, doing, params=params), kind, doing)

    async def post(
        self, path: str, kind: type[_T], doing: str, body: object, params: Params | None = None
    ) -> _T:
        """A `POST` of JSON, its answer read as `kind`."""
        raw = await self.call("POST", path, doing, params=params, json=body)
        return self._decoded(raw, kind, doing)

    async def call(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        params: Params | None = None,
        json: object = None,
        seconds: float = CALL_SECONDS,
    ) -> bytes:
        """Any call with an answer that fits in memory. `doing` completes "the engine cannot …"."""
        body = b"" if json is None else msgspec.json.encode(json)
        async with self.stream(
            method, path, doing, params=params, body=body, seconds=seconds
        ) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        params: Params | None = None,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A call whose body or answer may be long; without `seconds` it may take for ever."""
        if self._docker is None:
            raise SandboxUnavailable(f"the connection to {self.endpoint} is closed")
        kind = "application/json" if isinstance(body, bytes) else "application/x-tar"
        try:
            async with self._docker.session.request(
                method,
                URL(self._base + path, encoded=True),
                params=params,
                data=body or None,
                headers={"Content-Type": kind, **(headers or {})},
                timeout=_limit(seconds),
            ) as response:
                if response.status >= 400:
                    said = await response.read()
                    raise response_error(str(self.endpoint), response.status, said, doing)
                yield response
        except aiodocker.DockerError as error:
            raise self._refused(error, doing) from None
        except _CONNECTION_ERRORS as error:
            raise connection_error(str(self.endpoint), error, doing, seconds or 0) from error

    async def progress(
        self,
        path: str,
        doing: str,
        *,
        params: Params,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Progress, None]:
        """A `POST` that is answered line by line while the engine works.

        A line that says that it failed is raised; its `DaemonError` has the status 0. Whoever
        may leave before the end closes the generator, and with it the connection.
        """
        async with self.stream(
            "POST", path, doing, params=params, body=body, headers=headers
        ) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield self._worked(line, doing)
            if rest.strip():
                yield self._worked(rest, doing)

    async def attach(self, container: str) -> AttachStream:
        """Take over a connection as the stdin, stdout and stderr of a container."""
        if self._docker is None:
            raise SandboxUnavailable(f"the connection to {self.endpoint} is closed")

        async def setup() -> tuple[URL, bytes | None, bool]:
            query = "stream=1&stdin=1&stdout=1&stderr=1"
            return URL(f"containers/{container}/attach?{query}", encoded=True), None, False

        stream = Stream(self._docker, setup)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await stream.__aenter__()
        except aiodocker.DockerError as error:
            raise self._refused(error, "attach to a container") from None
        except _CONNECTION_ERRORS as error:
            doing = "attach to a container"
            raise connection_error(str(self.endpoint), error, doing, CALL_SECONDS) from error
        return AttachStream(stream, str(self.endpoint))

    def _refused(self, error: aiodocker.DockerError, doing: str) -> SandboxError:
        if error.status == _NO_CONNECTION:
            return DaemonUnreachable(
                f"the Docker engine at {self.endpoint} cannot be reached: {trimmed(error.message)}"
            )
        # What it said is not read before a connection is taken over.
        said = (error.message or ("No such container" if error.status == 404 else "")).encode()
        return response_error(str(self.endpoint), error.status, said, doing)

    def _worked(self, line: bytes, doing: str) -> Progress:
        told = self._decoded(line, Progress, doing)
        if not told.error:
            return told
        said = trimmed(told.error)
        if is_full_disk(said):
            raise full_disk_error(str(self.endpoint), said)
        message = f"the Docker engine at {self.endpoint} cannot {doing}: {said}"
        raise DaemonError(message, 0, said, told.detail.code)

    def _decoded(self, raw: bytes, kind: type[_T], doing: str) -> _T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise self._speaks_otherwise(doing, str(error)) from None

    def _speaks_otherwise(self, doing: str, why: str) -> SandboxUnavailable:
        return SandboxUnavailable(
            f"what answers at {self.endpoint} does not speak like a Docker engine when asked "
            f"to {doing}: {trimmed(why)}"
        )


def _limit(seconds: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS)


def _connector(endpoint: Endpoint) -> tuple[str, aiohttp.BaseConnector]:
    """A base for addresses, and what opens connections: any number, one is kept per sandbox."""
    url = endpoint.url
    if endpoint.is_local:
        path = url.removeprefix("unix://")
        return "unix://localhost", aiohttp.UnixConnector(path, limit=0)
    if url.startswith("ssh://"):
        from plimsoll.sandboxes.docker.daemon.ssh import Ssh

        try:
            return "unix://localhost", Ssh(url)
        except aiodocker.DockerError as error:
            raise UsageError(f"{endpoint}: {error.message}") from None
    if endpoint.certificates is None:
        return url.replace("tcp://", "http://", 1), aiohttp.TCPConnector(limit=0)
    tls = endpoint.certificates.ssl_context()
    return url.replace("tcp://", "https://", 1), aiohttp.TCPConnector(limit=0, ssl=tls)
