"""The channel between a run and its workers: encrypted, for known keys only.

The supervisor has a `ControllerSocket`; a worker has a `WorkerConnection`
(`worker/connection.py`). Both ends authenticate by their keys, so a message surely comes from the
worker that it names. A worker's key pair is made on its own host, and only the public key leaves
it. A worker's environment variables, which may be secrets, travel here too. Messages are JSON, as
are the options in them; nothing is pickled.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85

from plimsoll.workers.engines.protocol import Invitation, StartRequest
from plimsoll.workers.messages import (
    AskVariables,
    Beat,
    FromWorker,
    ToWorker,
    Variables,
)

__all__ = ["SILENCE_SECONDS", "ControllerSocket", "Received", "set_usual_options"]

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 15.0
"""A host that is silent for this long is dead. The exit of a process is noticed at once."""

_PING_MS = 2_000
_LINGER_MS = 1_000
_ZAP = "inproc://zeromq.zap.01"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder[FromWorker | AskVariables](FromWorker | AskVariables)


def set_usual_options(socket: zmq.Socket[Any]) -> None:
    """Set the socket options that both ends share."""
    socket.linger = _LINGER_MS
    # The ledger bounds the work in flight; a full queue would only block the loop.
    socket.sndhwm = socket.rcvhwm = 0
    # ZeroMQ's own thread sends and answers pings, so a busy loop does not look dead.
    socket.heartbeat_ivl = _PING_MS
    socket.heartbeat_timeout = int(SILENCE_SECONDS * 1000)


@dataclass(frozen=True, slots=True)
class Received:
    """A message and the worker whose key authenticated it."""

    worker: str
    message: FromWorker


class ControllerSocket:
    """The supervisor's end: receives from all workers, sends to each by name."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._context = zmq.asyncio.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._auth_socket = self._context.socket(zmq.REP)
        self._public, self._secret = zmq.curve_keypair()
        self._auth_task: asyncio.Task[None] | None = None
        self._admitted: dict[bytes, str] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self._routes: dict[str, bytes] = {}
        self.address = ""
        """The address that workers connect to, set on entry."""

    async def __aenter__(self) -> Self:
        self._auth_socket.linger = 0
        self._auth_socket.bind(_ZAP)
        self._auth_task = asyncio.create_task(self._authenticate())
        set_usual_options(self._router)
        self._router.curve_server = 1
        self._router.curve_secretkey = self._secret
        port = self._router.bind_to_random_port(f"tcp://{self._host}")
        self.address = f"tcp://{self._host}:{port}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._auth_task is not None:
            self._auth_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._auth_task
        self._auth_socket.close()
        self._router.close()
        # Waits for unsent messages, at most the linger time.
        await asyncio.to_thread(self._context.term)

    def prepare(self, worker: str, environment: dict[str, str]) -> StartRequest:
        """Prepare for a worker. It can connect once its public key is admitted."""
        self._environments[worker] = environment

        def admit(public_key: str) -> None:
            # Not if it was forgotten meanwhile: Ray may place a worker late.
            if worker in self._environments:
                self._admitted[z85.decode(public_key)] = worker

        invitation = Invitation(worker, self.address, self._public.decode())
        return StartRequest(invitation, environment, admit)

    def forget(self, worker: str) -> None:
        """Forget a worker that has ended: its keys are no longer accepted."""
        self._routes.pop(worker, None)
        self._environments.pop(worker, None)
        self._admitted = {key: name for key, name in self._admitted.items() if name != worker}

    def send(self, worker: str, message: ToWorker) -> None:
        """Send without waiting. Messages to a dead worker are dropped; its engine reports it."""
        if (route := self._routes.get(worker)) is not None:
            _send(self._router, route, _encoder.encode(message))

    async def receive(self) -> Received:
        """Return the next message of any worker."""
        while True:
            route, frame = await self._router.recv_multipart(copy=False)
            worker = str(frame.get("User-Id"))
            try:
                message = _decoder.decode(frame.buffer)
            except msgspec.DecodeError as error:
                logger.warning("worker %s sent a message that cannot be decoded: %s", worker, error)
                continue
            if isinstance(message, AskVariables):
                answer = Variables(self._environments.get(worker, {}))
                _send(self._router, route.bytes, _encoder.encode(answer))
                continue
            # Heartbeats use a connection of their own, on which nothing is ever sent back.
            if not isinstance(message, Beat):
                self._routes[worker] = route.bytes
            return Received(worker, message)

    async def _authenticate(self) -> None:
        """Authenticate workers by their admitted keys, each under its own name."""
        while True:
            request = await self._auth_socket.recv_multipart()
            version, number, key = request[0], request[1], request[-1]
            worker = self._admitted.get(key)
            code, text = (b"200", b"OK") if worker else (b"400", b"not admitted")
            name = (worker or "").encode()
            _send(self._auth_socket, version, number, code, text, name, b"")


def _send(socket: zmq.asyncio.Socket, *parts: bytes) -> None:
    """Send one message. It is queued before this returns, since queues are unbounded."""
    for part in parts[:-1]:
        socket.send(part, zmq.SNDMORE)
    socket.send(parts[-1])
