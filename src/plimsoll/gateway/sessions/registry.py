"""The sessions of a gateway, by id and key."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from plimsoll.gateway.access import key_digest, matches, new_key
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.sessions.handlers import session_ended
from plimsoll.gateway.sessions.session import Session

__all__ = ["MAX_ENDED", "SessionRegistry"]

MAX_ENDED = 1000
"""The number of ended sessions that are still distinguished from unknown ones."""


class SessionRegistry:
    """Open sessions by id, and the key digests of recently ended ones."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._ended: OrderedDict[str, bytes] = OrderedDict()
        self._unknown_digest = key_digest(new_key())
        self.on_end: Callable[[Session], None] | None = None
        """Called when a session ends, before its trajectory is closed."""

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: Session) -> None:
        self._open[session.id] = session

    def remove(self, session: Session) -> None:
        if self._open.pop(session.id, None) is not None:
            self._ended[session.id] = session.digest
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            if self.on_end is not None:
                self.on_end(session)

    def get(self, id: str) -> Session | None:
        return self._open.get(id)

    def find(self, id: str, key: str) -> Session:
        """The session with this id and key. Raises the same `Refusal` for a wrong key and an
        unknown id."""
        session = self._open.get(id)
        digest = (
            session.digest if session is not None else self._ended.get(id, self._unknown_digest)
        )
        if not matches(key, digest):
            raise Refusal("unauthorized", "unknown session or wrong key")
        if session is None or session.has_ended:
            raise session_ended()
        return session
