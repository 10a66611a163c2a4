"""The connection to one Docker daemon: calls with time limits, and errors as `SandboxError`.

The client is built on aiodocker, which speaks over unix sockets, TLS and ssh and takes over the
connection of an attached container; no `docker` command is needed. Ordinary calls use aiodocker's
session directly, for typed responses and time limits.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import aiodocker
import aiohttp
import msgspec
from aiodocker.ssh import SSHConnector
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
    shorten,
)
from plimsoll.sandboxes.docker.daemon.responses import DaemonVersion

__all__ = ["CALL_SECONDS", "AttachStream", "Body", "Client", "Params", "Progress", "SshConnector"]

CONNECT_SECONDS = 10.0
"""Time limit in seconds for a connection and the first response."""
CALL_SECONDS = 60.0
"""Time limit in seconds for an ordinary call."""
_NEWEST_API = (1, 44)
"""The newest API version that this code uses; later daemons support it."""

_T = TypeVar("_T")
Params = Mapping[str, str | Sequence[str]]
Body = bytes | AsyncIterable[bytes]

_CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""Exceptions of a call that got no response."""
_NO_CONNECTION = 900
"""Status that aiodocker sets when there is no connection, for example when ssh fails."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """Details of a failed step: the exit code of its command, if it ran one."""

    code: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """One progress line of a build, a pull or an import."""

    stream: str = ""
    status: str = ""
    id: str = ""
    progress: str = ""
    error: str = ""
    detail: ErrorDetail = msgspec.field(default=ErrorDetail(), name="errorDetail")


class AttachStream:
    """The attached stdin, stdout and stderr of a container."""

    def __init__(self, stream: Stream, endpoint: str) -> None:
        self._stream = stream
        self._endpoint = endpoint

    async def read(self) -> tuple[int, bytes] | None:
        """The next chunk, with 1 for stdout and 2 for stderr; None at the end or on an error."""
        try:
            return await self._stream.read_out()
        except (aiohttp.ClientError, OSError):
            return None

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write_in(data)
        # aiodocker asserts that the connection is open; it may just have been closed.
        except (aiohttp.ClientError, OSError, RuntimeError, AssertionError) as error:
            raise SandboxUnavailable(
                f"the container's stream from the Docker daemon at {self._endpoint} has ended"
            ) from error

    async def close(self) -> None:
        await self._stream.close()


class Client:
    """A client of one daemon. Use it as an async context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.version = DaemonVersion()
        self._base = ""
        self._docker: aiodocker.Docker | None = None

    async def __aenter__(self) -> Self:
        """Connect and negotiate the API version."""
        url, connector = _connector(self.endpoint)
        # aiodocker does not close a session that it did not open; `close` does.
        session = aiohttp.ClientSession(connector=connector, timeout=_timeout(CALL_SECONDS))
        self._docker = aiodocker.Docker(url, connector=connector, session=session)
        self._base = url
        try:
            action = "report its version"
            raw = await self.call("GET", "/version", action, seconds=CONNECT_SECONDS)
            self.version = self._decode(raw, DaemonVersion, action)
            if not re.fullmatch(r"\d{1,6}\.\d{1,6}", self.version.api, re.ASCII):
                raise self._invalid_response(action, f"bad API version {self.version.api!r}")
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
        """The negotiated API version."""
        major, _, minor = self.version.api.partition(".")
        newest = int(major), int(minor)
        return min(newest, _NEWEST_API)

    async def get(self, path: str, kind: type[_T], action: str, params: Params | None = None) -> _T:
        """Send a `GET` and decode the response as `kind`."""
        return self._decode(await self.call("GET", path, action, params=params), kind, action)

    async def post(
        self, path: str, kind: type[_T], action: str, body: object, params: Params | None = None
    ) -> _T:
        """Send a `POST` with a JSON body and decode the response as `kind`."""
        raw = await self.call("POST", path, action, params=params, json=body)
        return self._decode(raw, kind, action)

    async def call(
        self,
        method: str,
        path: str,
        action: str,
        *,
        params: Params | None = None,
        json: object = None,
        seconds: float = CALL_SECONDS,
    ) -> bytes:
        """Send a request and read the whole response. `action` completes "the daemon cannot …"."""
        body = b"" if json is None else msgspec.json.encode(json)
        async with self.stream(
            method, path, action, params=params, body=body, seconds=seconds
        ) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        action: str,
        *,
        params: Params | None = None,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Send a request with a streamed body or response; there is no limit without `seconds`."""
        if self._docker is None:
            raise SandboxUnavailable(f"the connection to {self.endpoint} is closed")
        content_type = "application/json" if isinstance(body, bytes) else "application/x-tar"
        try:
            async with self._docker.session.request(
                method,
                URL(self._base + path, encoded=True),
                params=params,
                data=body or None,
                headers={"Content-Type": content_type, **(headers or {})},
                timeout=_timeout(seconds),
            ) as response:
                if response.status >= 400:
                    text = await response.read()
                    raise response_error(str(self.endpoint), response.status, text, action)
                yield response
        except aiodocker.DockerError as error:
            raise self._docker_error(error, action) from None
        except _CONNECTION_ERRORS as error:
            raise connection_error(str(self.endpoint), error, action, seconds or 0) from error

    async def progress(
        self,
        path: str,
        action: str,
        *,
        params: Params,
        body: Body = b"",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Progress, None]:
        """Send a `POST` and yield the progress lines of the response.

        A line that reports a failure is raised as a `DaemonError` with status 0. A caller that
        stops early must close the generator, which closes the connection.
        """
        async with self.stream(
            "POST", path, action, params=params, body=body, headers=headers
        ) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield self._progress_line(line, action)
            if rest.strip():
                yield self._progress_line(rest, action)

    async def attach(self, container: str) -> AttachStream:
        """Attach to the stdin, stdout and stderr of a container."""
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
            raise self._docker_error(error, "attach to a container") from None
        except _CONNECTION_ERRORS as error:
            action = "attach to a container"
            raise connection_error(str(self.endpoint), error, action, CALL_SECONDS) from error
        return AttachStream(stream, str(self.endpoint))

    def _docker_error(self, error: aiodocker.DockerError, action: str) -> SandboxError:
        if error.status == _NO_CONNECTION:
            return DaemonUnreachable(
                f"the Docker daemon at {self.endpoint} cannot be reached: {shorten(error.message)}"
            )
        # aiodocker does not read the body of a response to an attach request.
        text = (error.message or ("No such container" if error.status == 404 else "")).encode()
        return response_error(str(self.endpoint), error.status, text, action)

    def _progress_line(self, line: bytes, action: str) -> Progress:
        progress = self._decode(line, Progress, action)
        if not progress.error:
            return progress
        reason = shorten(progress.error)
        if is_full_disk(reason):
            raise full_disk_error(str(self.endpoint), reason)
        message = f"the Docker daemon at {self.endpoint} cannot {action}: {reason}"
        raise DaemonError(message, 0, reason, progress.detail.code)

    def _decode(self, raw: bytes, kind: type[_T], action: str) -> _T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise self._invalid_response(action, str(error)) from None

    def _invalid_response(self, action: str, reason: str) -> SandboxUnavailable:
        return SandboxUnavailable(
            f"the server at {self.endpoint} is not a Docker daemon: invalid response when asked "
            f"to {action}: {shorten(reason)}"
        )


def _timeout(seconds: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, connect=CONNECT_SECONDS)


def _connector(endpoint: Endpoint) -> tuple[str, aiohttp.BaseConnector]:
    """The base URL, and a connector without a connection limit: each sandbox keeps one open."""
    url = endpoint.url
    if endpoint.is_local:
        path = url.removeprefix("unix://")
        return "unix://localhost", aiohttp.UnixConnector(path, limit=0)
    if url.startswith("ssh://"):
        try:
            return "unix://localhost", SshConnector(url)
        except aiodocker.DockerError as error:
            raise UsageError(f"{endpoint}: {error.message}") from None
    if endpoint.certificates is None:
        return url.replace("tcp://", "http://", 1), aiohttp.TCPConnector(limit=0)
    tls = endpoint.certificates.ssl_context()
    return url.replace("tcp://", "https://", 1), aiohttp.TCPConnector(limit=0, ssl=tls)


class _UnlimitedConnector(aiohttp.UnixConnector):
    """A base for aiodocker's connector, which otherwise has aiohttp's default limit."""

    def __init__(self, path: str) -> None:
        super().__init__(path, limit=0)


class SshConnector(SSHConnector, _UnlimitedConnector):  # pyright: ignore[reportIncompatibleMethodOverride]
    """An ssh connector without a connection limit; each connection is a session of one ssh."""


# This failure is also raised, so its log line is dropped. Failed sessions are only logged.
logging.getLogger("aiodocker.ssh").addFilter(
    lambda record: not str(record.msg).startswith("Failed to establish")
)
