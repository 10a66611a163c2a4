"""A worker's connections to its run: one for its event loop, one for its heartbeat thread.

A broken connection is not repaired: messages in flight may be lost, so the worker ends and is
replaced. That costs time, and nothing else.
"""

import asyncio
import contextlib
import os
import platform
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from plimsoll.core.errors import WorkerError
from plimsoll.workers.channel import set_usual_options
from plimsoll.workers.engines.protocol import Credentials
from plimsoll.workers.messages import (
    AskVariables,
    Beat,
    FromWorker,
    ToWorker,
    Variables,
)

__all__ = ["HeartbeatConnection", "WorkerConnection", "fetch_environment"]

_BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_NEVER = -1
_REACHED_SECONDS = 30.0
"""Time limit for a host to reach the run."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder[ToWorker](ToWorker)


def _prepare(socket: zmq.Socket[Any], credentials: Credentials) -> None:
    set_usual_options(socket)
    socket.reconnect_ivl = _NEVER
    socket.curve_serverkey = credentials.invitation.server_key.encode()
    socket.curve_publickey = credentials.public_key.encode()
    socket.curve_secretkey = credentials.secret_key.encode()


class WorkerConnection:
    """The connection of a worker's event loop."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor: zmq.asyncio.Socket | None = None

    async def __aenter__(self) -> Self:
        _prepare(self._socket, self._credentials)
        self._monitor = self._socket.get_monitor_socket(_BROKEN)
        self._socket.connect(self._credentials.invitation.address)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _close(self._socket, self._monitor)
        # Waits for unsent messages, at most the linger time.
        await asyncio.to_thread(self._context.term)

    def send(self, message: FromWorker) -> None:
        """Send without waiting."""
        self._socket.send(_encoder.encode(message))

    async def receive(self) -> ToWorker:
        return _decoder.decode(await self._socket.recv())

    async def fetch_environment(self) -> dict[str, str]:
        """Request the worker's environment variables, before its process is started."""
        self._socket.send(_encoder.encode(AskVariables()))
        return msgspec.json.decode(await self._socket.recv(), type=Variables).variables

    async def broken(self) -> str:
        """Wait until the connection is broken, and return the reason."""
        assert self._monitor is not None, "the connection is not entered"
        return _why(await self._monitor.recv_multipart())


async def fetch_environment(credentials: Credentials) -> dict[str, str]:
    """Fetch the environment variables of a worker, on the host that is about to start it.

    Raises `WorkerError` if the run cannot be reached from here.
    """
    async with WorkerConnection(credentials) as connection:
        answer = asyncio.create_task(connection.fetch_environment())
        broken = asyncio.create_task(connection.broken())
        try:
            done, _ = await asyncio.wait(
                [answer, broken],
                timeout=_REACHED_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answer in done:
                return answer.result()
            why = broken.result() if broken in done else f"no answer in {_REACHED_SECONDS:g} s"
        finally:
            for task in (answer, broken):
                task.cancel()
            await asyncio.gather(answer, broken, return_exceptions=True)
    raise WorkerError(
        f"{why}, at {credentials.invitation.address} as seen from {platform.node()}: open this "
        "address to the cluster's nodes"
    )


class HeartbeatConnection:
    """The connection of the heartbeat thread. For one thread at a time, except `wake`."""

    def __init__(self, credentials: Credentials) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _prepare(self._socket, credentials)
        self._socket.linger = 0
        self._monitor = self._socket.get_monitor_socket(_BROKEN)
        self._awake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._awake, zmq.POLLIN)
        self._socket.connect(credentials.invitation.address)

    def send(self, beat: Beat) -> None:
        """Send without waiting; a heartbeat that cannot be sent is dropped."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(_encoder.encode(beat), zmq.NOBLOCK)

    def broken(self, within: float) -> bool:
        """True if the connection breaks within this many seconds. Waits that long, unless woken."""
        return any(source is self._monitor for source, _ in self._poller.poll(int(within * 1000)))

    def wake(self) -> None:
        """End a wait in another thread."""
        os.eventfd_write(self._awake, 1)

    def close(self) -> None:
        _close(self._socket, self._monitor)
        self._context.term()
        os.close(self._awake)


def _close(socket: zmq.Socket[Any], monitor: zmq.Socket[Any] | None) -> None:
    """Close both: a context does not end while one of its sockets is open."""
    socket.disable_monitor()
    if monitor is not None:
        monitor.close(linger=0)
    socket.close()


def _why(event: list[bytes]) -> str:
    kind = zmq.Event(parse_monitor_message(event)["event"])
    return {
        zmq.EVENT_DISCONNECTED: "the run is gone",
        zmq.EVENT_CLOSED: "the run cannot be reached",
    }.get(kind, "the run does not know this worker's key")
