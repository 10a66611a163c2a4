"""The calls of a standalone gateway's admin: sessions are opened, looked at and ended, the policy
is paused."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from aiohttp import hdrs, web

from plimsoll.core.errors import TrajectoryError
from plimsoll.core.unreadable import UNREADABLE
from plimsoll.gateway.bearer import key_of
from plimsoll.gateway.bodies import read_body
from plimsoll.gateway.forms import Refusal
from plimsoll.gateway.register import Register
from plimsoll.gateway.replies import whole
from plimsoll.gateway.sessions.keys import matches
from plimsoll.gateway.sessions.limits import MOST_BODY_BYTES, MOST_CONCURRENT, Limits
from plimsoll.gateway.sessions.presence import Presence
from plimsoll.gateway.sessions.registry import Sessions
from plimsoll.gateway.sessions.session import Session
from plimsoll.gateway.steering import policy_status, steer
from plimsoll.gateway.upstreams.gate import Gate

__all__ = ["Admin", "Opener"]

BODY_BYTES = 1 << 20
AT_ONCE = 64
Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Concurrent = Annotated[int, msgspec.Meta(ge=1, le=MOST_CONCURRENT)]
BodyBytes = Annotated[int, msgspec.Meta(ge=1, le=MOST_BODY_BYTES)]


class WantedLimits(msgspec.Struct, forbid_unknown_fields=True):
    """`Limits`, as they are asked for."""

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


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """A session, as it is asked for."""

    limits: WantedLimits = msgspec.field(default_factory=WantedLimits)
    about: dict[str, str] = {}
    model: str | None = None


Opener = Callable[[Limits, dict[str, str], str | None], Awaitable[Session]]
"""Opens a session: its limits, what it is about, the model's name."""

_WANTED = msgspec.json.Decoder(Wanted)


class Admin:
    """`POST /sessions`, `GET` and `DELETE` of `/sessions/ID`, `GET` and `POST` of `/policy`: each
    with the admin's key."""

    def __init__(
        self,
        sessions: Sessions,
        register: Register,
        open_session: Opener,
        gate: Gate,
        key_digest: bytes,
    ) -> None:
        self._sessions = sessions
        self._gate = gate
        self._register = register
        self._open_session = open_session
        self._digest = key_digest
        self._presence = Presence(AT_ONCE, BODY_BYTES)

    async def __call__(self, http: web.BaseRequest, path: str) -> web.Response:
        """Of `/policy`, and paths that begin with `/sessions`."""
        if not matches(key_of(http), self._digest):
            raise Refusal("unauthorized", "this call needs the admin's key as a bearer token")
        if path == "/policy":
            return await self._policy(http)
        if path == "/sessions":
            if http.method != hdrs.METH_POST:
                raise Refusal("wrong_method", "/sessions takes POST only")
            return await self._open(http)
        id = path.removeprefix("/sessions/")
        if self._register.status(id) is None:
            raise Refusal("not_found", "there is no such session, or it ended long ago")
        if http.method not in (hdrs.METH_GET, hdrs.METH_DELETE):
            raise Refusal("wrong_method", f"{path[:200]} takes GET and DELETE only")
        session = self._sessions.get(id)
        if http.method == hdrs.METH_DELETE and session is not None:
            with _storage():
                await session.end()
        return whole(msgspec.json.encode(self._register.status(id)))

    async def _policy(self, http: web.BaseRequest) -> web.Response:
        if http.method not in (hdrs.METH_GET, hdrs.METH_POST):
            raise Refusal("wrong_method", "/policy takes GET and POST only")
        if http.method == hdrs.METH_POST:
            await steer(self._gate, await read_body(http, BODY_BYTES, self._presence))
        return whole(msgspec.json.encode(policy_status(self._gate)))

    async def _open(self, http: web.BaseRequest) -> web.Response:
        body = await read_body(http, BODY_BYTES, self._presence)
        try:
            wanted = _WANTED.decode(body or b"{}")
        except UNREADABLE as error:
            raise Refusal("bad_request", f"the body cannot be read: {error}") from None
        with _storage():
            session = await self._open_session(wanted.limits.limits(), wanted.about, wanted.model)
        access = session.access_at(f"http://{http.host}")
        said = {
            "id": session.id,
            "key": access.key,
            "model": access.model,
            "root": access.root,
            "openai": access.openai,
            "anthropic": access.anthropic,
            "trajectory": self._register.path(session),
        }
        return whole(msgspec.json.encode(said), 201)


@contextmanager
def _storage() -> Generator[None]:
    """A disk that is full, or no more files to open, is told to whoever asked."""
    try:
        yield
    except TrajectoryError as error:
        raise Refusal("busy", str(error)) from error
