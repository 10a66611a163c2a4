"""The sessions of a standalone gateway by id, including recently ended ones."""

from collections import OrderedDict
from pathlib import Path

import msgspec

from plimsoll.core.endings import Ending
from plimsoll.gateway.sessions.registry import MAX_ENDED, SessionRegistry
from plimsoll.gateway.sessions.session import Session

__all__ = ["SessionRecords", "SessionStatus"]


class SessionStatus(msgspec.Struct):
    """The state of a session, or its last state if it has ended."""

    id: str
    exchanges: int
    tokens: int
    in_flight: int
    ending: Ending | None
    detail: str
    failure: str
    ended: bool
    trajectory: str
    """The path of its trajectory once it is closed."""
    closed: bool = False


class SessionRecords:
    """The trajectory path of each session, and the last state of recently ended ones.

    A session may end by itself; its result can still be requested.
    """

    def __init__(self, sessions: SessionRegistry) -> None:
        self._sessions = sessions
        self._paths: dict[str, Path] = {}
        self._ended: OrderedDict[str, SessionStatus] = OrderedDict()
        sessions.on_end = self._on_end

    def add(self, session: Session, path: Path) -> None:
        self._paths[session.id] = path

    def path(self, session: Session) -> str:
        """The path of an open session's trajectory once it is closed."""
        return str(self._paths[session.id])

    def status(self, id: str) -> SessionStatus | None:
        """The state of a session; None if it is unknown or ended long ago."""
        session = self._sessions.get(id)
        if session is not None and id in self._paths:
            status = self._status(session, ended=False)
        else:
            status = self._ended.get(id)
        if status is not None:
            # The file is closed shortly after the session has ended, unless the disk is full.
            status.closed = Path(status.trajectory).exists()
        return status

    def _on_end(self, session: Session) -> None:
        if session.id not in self._paths:
            return  # not opened through the admin API
        self._ended[session.id] = self._status(session, ended=True)
        del self._paths[session.id]
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def _status(self, session: Session, *, ended: bool) -> SessionStatus:
        return SessionStatus(
            id=session.id,
            exchanges=session.exchanges,
            tokens=session.tokens,
            in_flight=session.in_flight,
            ending=session.ending,
            detail=session.detail,
            failure=session.failure,
            ended=ended,
            trajectory=self.path(session),
        )
