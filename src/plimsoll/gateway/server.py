"""The HTTP server: finds the session of a request, and answers whatever comes of it.

Nothing is a 500. A refusal is written in the dialect that was asked for; where none was, in a
plain shape of its own.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import hdrs, web

from plimsoll.gateway.bearer import key_of
from plimsoll.gateway.dialects.protocol import STATUSES, Dialect
from plimsoll.gateway.exchange import count, exchange, models
from plimsoll.gateway.forms import Refusal
from plimsoll.gateway.metrics import Metrics
from plimsoll.gateway.newcomers import Newcomers
from plimsoll.gateway.replies import refusal_reply, whole
from plimsoll.gateway.routes import Endpoint, Route, split
from plimsoll.gateway.sessions.pending import internal
from plimsoll.gateway.sessions.registry import Sessions
from plimsoll.gateway.sessions.session import Session

__all__ = ["Elsewhere", "Handler"]

log = logging.getLogger(__name__)

Elsewhere = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
"""Answers what is asked outside of sessions, by its path."""


class Handler:
    """Answers each request. It is what the server calls."""

    def __init__(
        self,
        sessions: Sessions,
        metrics: Metrics,
        newcomers: Newcomers,
        elsewhere: Elsewhere | None,
    ) -> None:
        self._sessions = sessions
        self._metrics = metrics
        self._newcomers = newcomers
        self._elsewhere = elsewhere

    async def __call__(self, http: web.BaseRequest) -> web.StreamResponse:
        self._newcomers.asked(http.protocol)
        path = http.path_qs.partition("?")[0]
        route = split(path, http.headers)
        dialect = route.endpoint.dialect if route is not None and route.endpoint else None
        try:
            if route is not None:
                return await self._in_session(http, route)
            if self._elsewhere is not None:
                return await self._elsewhere(http, path)
            raise nothing_at(path)
        except Refusal as refusal:
            return self._refuse(dialect, refusal)
        except Exception:  # the server's boundary: a defined answer, a trace, and a count
            log.exception("a request failed unforeseen")
            self._metrics.internal += 1
            return self._refuse(dialect, internal())

    async def _in_session(self, http: web.BaseRequest, route: Route) -> web.StreamResponse:
        endpoint = route.endpoint
        if endpoint is None:
            raise nothing_at(route.path)
        if http.method == hdrs.METH_OPTIONS:
            return web.Response(status=204, headers={"Allow": f"{endpoint.method}, OPTIONS"})
        if http.method != endpoint.method:
            raise Refusal("wrong_method", f"{route.path} takes {endpoint.method} only")
        session = self._sessions.find(route.session, key_of(http))
        try:
            handler = session.presence.enter()
            try:
                return await self._act(http, session, endpoint, route.path)
            finally:
                session.presence.leave(handler)
        except Refusal as refusal:
            session.refused(refusal, endpoint.dialect.name)
            raise

    async def _act(
        self, http: web.BaseRequest, session: Session, endpoint: Endpoint, path: str
    ) -> web.StreamResponse:
        match endpoint.action:
            case "exchange":
                return await exchange(http, session, endpoint.dialect, path)
            case "count":
                return await count(http, session, endpoint.dialect)
            case "models":
                return models(http, session, path)

    def _refuse(self, dialect: Dialect | None, refusal: Refusal) -> web.StreamResponse:
        self._metrics.outcomes[(dialect.name if dialect else "", refusal.kind)] += 1
        if dialect is not None:
            return refusal_reply(dialect, refusal)
        body = {"error": {"type": refusal.kind, "message": refusal.message}}
        return whole(msgspec.json.encode(body), STATUSES[refusal.kind])


def nothing_at(path: str) -> Refusal:
    return Refusal("not_found", f"there is nothing at {path[:200]}")
