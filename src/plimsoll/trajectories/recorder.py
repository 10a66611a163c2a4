"""The recorder of a session: the graph that locates exchanges, and the trajectory file."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from plimsoll.core.errors import TrajectoryError
from plimsoll.core.versions import Version
from plimsoll.trajectories.blobs import Blobs
from plimsoll.trajectories.graph import Added, Graph
from plimsoll.trajectories.message_tree import History, Position
from plimsoll.trajectories.records import Exchange, MessageAdded, Opened, Trouble
from plimsoll.trajectories.reported_tokens import AnsweredRequest
from plimsoll.trajectories.trajectory_file import TrajectoryWriter

__all__ = ["Recorder"]


class Recorder:
    """Records one session. An exchange is in the file when `commit` returns."""

    def __init__(self, writer: TrajectoryWriter, blobs: Blobs) -> None:
        self._writer = writer
        self._blobs = blobs
        self._graph: Graph | None = Graph()
        self._exchanges = 0
        self._version_runs: list[tuple[Version, int]] = []
        self._sealed: asyncio.Future[Path] | None = None

    @classmethod
    def open(cls, folder: Path, blobs: Path, session: str, about: Mapping[str, str]) -> "Recorder":
        """Create a trajectory in a folder that has none yet. Large images go to `blobs`."""
        return cls(
            TrajectoryWriter(folder, Opened(session, time.time(), dict(about))), Blobs(blobs)
        )

    @property
    def path(self) -> Path:
        """The path of the trajectory once it is closed."""
        return self._writer.path

    @property
    def exchanges(self) -> int:
        return self._exchanges

    @property
    def version_runs(self) -> tuple[tuple[Version, int], ...]:
        """Runs of (version, number of generated tokens) of all exchanges, in order."""
        return tuple(self._version_runs)

    @property
    def blobs(self) -> list[Path]:
        """The blobs that the recorded messages refer to."""
        return self._blobs.used

    def locate(self, history: History, tools: msgspec.Raw | None) -> Position:
        return self._open_graph().locate(history, tools)

    def commit(self, position: Position, answered: AnsweredRequest) -> Exchange:
        """Add an exchange and write it. It is handed to the operating system when this returns."""
        added = self._open_graph().commit(position, answered)
        try:
            records = [self._with_blobs(record) for record in added]
        except OSError as error:
            raise TrajectoryError(self._writer.fail(error)) from error
        self._writer.write(records)
        self._exchanges += 1
        exchange = records[-1]
        assert isinstance(exchange, Exchange)
        self._count_versions(exchange)
        return exchange

    def trouble(self, what: str, detail: str, dialect: str = "") -> None:
        """Record a request that was not answered, or a limit that was reached."""
        self._open_graph()  # the file is written no more once it is being sealed
        self._writer.write([Trouble(time.time(), what, detail, dialect)])

    async def close(self, ending: str, detail: str = "") -> Path:
        """Close the file and flush it to disk. A second call waits for the first."""
        if self._sealed is None:
            self._graph = None
            try:
                self._writer.finish(ending, self._exchanges, detail)
            except TrajectoryError:
                self.abandon()
                raise
            loop = asyncio.get_running_loop()
            self._sealed = loop.run_in_executor(None, self._writer.seal, self._blobs.used)
        return await asyncio.shield(self._sealed)

    def abandon(self) -> None:
        """Close the file unfinished."""
        self._graph = None
        if self._sealed is None:
            self._writer.drop()

    def _count_versions(self, exchange: Exchange) -> None:
        runs = exchange.tokens.versions if exchange.tokens is not None else ()
        for version, tokens in runs or ((exchange.version, exchange.answer_tokens or 0),):
            if self._version_runs and self._version_runs[-1][0] == version:
                tokens += self._version_runs.pop()[1]
            self._version_runs.append((version, tokens))

    def _open_graph(self) -> Graph:
        if self._graph is None:
            raise TrajectoryError(f"{self.path}: the trajectory is closed")
        return self._graph

    def _with_blobs(self, record: Added) -> Added:
        if not isinstance(record, MessageAdded):
            return record
        message = self._blobs.store_images(record.message)
        return (
            record if message is record.message else MessageAdded(record.id, record.parent, message)
        )
