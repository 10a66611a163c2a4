"""The admin API of the standalone gateway: opens, shows and ends sessions, and pauses the
policy.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from aiohttp import hdrs, web

from plimsoll.core.errors import TrajectoryError
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.core.versions import Version
from plimsoll.gateway.access import matches, request_key
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.http.replies import json_reply
from plimsoll.gateway.http.request_body import request_body
from plimsoll.gateway.sessions.handlers import Handlers
from plimsoll.gateway.sessions.limits import MAX_BODY_BYTES, MAX_CONCURRENT, Limits
from plimsoll.gateway.sessions.registry import SessionRegistry
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.standalone.session_records import SessionRecords
from plimsoll.gateway.upstreams.gate import Gate

__all__ = ["Admin", "Opener"]

BODY_BYTES = 1 << 20
MAX_ADMIN_CALLS = 64
Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Concurrent = Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENT)]
BodyBytes = Annotated[int, msgspec.Meta(ge=1, le=MAX_BODY_BYTES)]


class LimitsSpec(msgspec.Struct, forbid_unknown_fields=True):
    """`Limits` in the body of `POST /sessions`."""

    turns: Count | None = None
    tokens: Count | None = None
    seconds: Seconds | None = None
    concurrent: Concurrent = Limits().concurrent
    body_bytes: BodyBytes = Limits().body_bytes

    def limits(self) -> Limits:
        return Limits(
            turns=self.turns,
            tokens=self.tokens,
            seconds=self.seconds,
            concurrent=self.concurrent,
            body_bytes=self.body_bytes,
        )


class SessionSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /sessions`."""

    limits: LimitsSpec = msgspec.field(default_factory=LimitsSpec)
    about: dict[str, str] = {}
    model: str | None = None


Opener = Callable[[Limits, dict[str, str], str | None], Awaitable[Session]]
"""Opens a session from its limits, its `about` labels and the model's name."""

_SESSION_SPEC = msgspec.json.Decoder(SessionSpec)


class Admin:
    """Handles `POST /sessions`, `GET` and `DELETE` of `/sessions/ID`, `GET` and `POST` of
    `/policy`. Each call needs the admin key."""

    def __init__(
        self,
        sessions: SessionRegistry,
        records: SessionRecords,
        open_session: Opener,
        gate: Gate,
        key_digest: bytes,
    ) -> None:
        self._sessions = sessions
        self._gate = gate
        self._records = records
        self._open_session = open_session
        self._digest = key_digest
        self._handlers = Handlers(MAX_ADMIN_CALLS, BODY_BYTES)

    async def __call__(self, http: web.BaseRequest, path: str) -> web.Response:
        """Handle a call to `/policy`, or to a path that begins with `/sessions`."""
        if not matches(request_key(http), self._digest):
            raise Refusal("unauthorized", "this call needs the admin key as a bearer token")
        if path == "/policy":
            return await self._policy(http)
        if path == "/sessions":
            if http.method != hdrs.METH_POST:
                raise Refusal("wrong_method", "/sessions accepts POST only")
            return await self._open(http)
        id = path.removeprefix("/sessions/")
        if self._records.status(id) is None:
            raise Refusal("not_found", "unknown session, or it ended long ago")
        if http.method not in (hdrs.METH_GET, hdrs.METH_DELETE):
            raise Refusal("wrong_method", f"{path[:200]} accepts GET and DELETE only")
        session = self._sessions.get(id)
        if http.method == hdrs.METH_DELETE and session is not None:
            with _storage_errors():
                await session.end()
        return json_reply(msgspec.json.encode(self._records.status(id)))

    async def _policy(self, http: web.BaseRequest) -> web.Response:
        if http.method not in (hdrs.METH_GET, hdrs.METH_POST):
            raise Refusal("wrong_method", "/policy accepts GET and POST only")
        if http.method == hdrs.METH_POST:
            await apply_policy_command(self._gate, await self._read_body(http))
        return json_reply(msgspec.json.encode(policy_status(self._gate)))

    async def _read_body(self, http: web.BaseRequest) -> bytes:
        async with request_body(http, BODY_BYTES, self._handlers) as body:
            return body

    async def _open(self, http: web.BaseRequest) -> web.Response:
        body = await self._read_body(http)
        try:
            spec = _SESSION_SPEC.decode(body or b"{}")
        except DECODE_ERRORS as error:
            raise Refusal("bad_request", f"invalid body: {error}") from None
        with _storage_errors():
            session = await self._open_session(spec.limits.limits(), spec.about, spec.model)
        access = session.access_at(f"http://{http.host}")
        reply = {
            "id": session.id,
            "key": access.key,
            "model": access.model,
            "root": access.root,
            "openai": access.openai,
            "anthropic": access.anthropic,
            "trajectory": self._records.path(session),
        }
        return json_reply(msgspec.json.encode(reply), 201)


@contextmanager
def _storage_errors() -> Generator[None]:
    """Turn a storage error (disk full, too many open files) into a refusal."""
    try:
        yield
    except TrajectoryError as error:
        raise Refusal("busy", str(error)) from error


MAX_VERSION = 10**15
"""The limit on the numbers of a version: a trajectory has no room for larger ones."""
VersionText = Annotated[str, msgspec.Meta(max_length=40)]


class _PolicyCommand(msgspec.Struct, forbid_unknown_fields=True):
    paused: bool
    version: VersionText | None = None


_POLICY_COMMAND = msgspec.json.Decoder(_PolicyCommand)


async def apply_policy_command(gate: Gate, body: bytes) -> None:
    """Pause or resume the policy. Raises `Refusal` for an invalid body, and then changes
    nothing."""
    try:
        spec = _POLICY_COMMAND.decode(body)
        version = None if spec.version is None else _version(spec.version)
    except DECODE_ERRORS as error:
        raise Refusal("bad_request", f"invalid body: {error}") from None
    if not spec.paused:
        gate.resume(version)
    elif version is None:
        await gate.pause()
    else:
        message = "set version together with paused=false"
        raise Refusal("bad_request", message, param="version")


def policy_status(gate: Gate) -> dict[str, object]:
    return {
        "paused": gate.paused,
        "version": str(gate.version),
        "model": gate.model,
        "in_flight": gate.in_flight,
        "held": gate.held,
    }


def _version(text: str) -> Version:
    version = Version.parse(text)
    if max(version.lineage, version.number) > MAX_VERSION:
        raise ValueError(f"{text!r} is not a version")
    return version
