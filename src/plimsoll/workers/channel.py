"""How a run and its workers reach each other: encrypted, and only with a known key.

The supervisor has a `ControllerSocket`; a worker has a line to it (`workers/line.py`). Both ends
prove who they are by their keys, so what the switchboard hears is surely from the worker that
it names. A worker's key pair is made on its own host, and only the public key leaves it. A
worker's environment variables, which may be secrets, travel here too. Messages are JSON, as the
options that travel in them are; nothing is pickled.
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

from plimsoll.workers.engines.protocol import Invitation, Opening
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
"""A host that says nothing for so long is gone. A process that ends is noticed at once."""

_PING_MS = 2_000
_LINGER_MS = 1_000
_ZAP = "inproc://zeromq.zap.01"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder[FromWorker | AskVariables](FromWorker | AskVariables)


def set_usual_options(socket: zmq.Socket[Any]) -> None:
    """What both ends have in common."""
    socket.linger = _LINGER_MS
    # The ledger bounds what is under way; a full queue would only block the loop.
    socket.sndhwm = socket.rcvhwm = 0
    # Asked and answered by the library's own thread, so a busy loop is not taken for silence.
    socket.heartbeat_ivl = _PING_MS
    socket.heartbeat_timeout = int(SILENCE_SECONDS * 1000)


@dataclass(frozen=True, slots=True)
class Received:
    """A message, and the worker whose key it came with."""

    worker: str
    message: FromWorker


class ControllerSocket:
    """The supervisor's end: hears all of its workers, and speaks to each by name."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._context = zmq.asyncio.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._door = self._context.socket(zmq.REP)
        self._public, self._secret = zmq.curve_keypair()
        self._doorkeeper: asyncio.Task[None] | None = None
        self._admitted: dict[bytes, str] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self._routes: dict[str, bytes] = {}
        self.address = ""
        """Where workers find it, once it is entered."""

    async def __aenter__(self) -> Self:
        self._door.linger = 0
        self._door.bind(_ZAP)
        self._doorkeeper = asyncio.create_task(self._keep_door())
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
        if self._doorkeeper is not None:
            self._doorkeeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._doorkeeper
        self._door.close()
        self._router.close()
        # Waits for what is not sent yet, as long as it may linger.
        await asyncio.to_thread(self._context.term)

    def open(self, worker: str, environment: dict[str, str]) -> Opening:
        """Prepare for a worker. It is let in once its public key is admitted."""
        self._environments[worker] = environment

        def admit(public_key: str) -> None:
            # Unless it was forgotten meanwhile: Ray may place a worker late.
            if worker in self._environments:
                self._admitted[z85.decode(public_key)] = worker

        invitation = Invitation(worker, self.address, self._public.decode())
        return Opening(invitation, environment, admit)

    def forget(self, worker: str) -> None:
        """The worker is gone: its keys open nothing any more."""
        self._routes.pop(worker, None)
        self._environments.pop(worker, None)
        self._admitted = {key: name for key, name in self._admitted.items() if name != worker}

    def send(self, worker: str, message: ToWorker) -> None:
        """Never waits. What is said to a worker that is gone is lost; its engine sees it end."""
        if (route := self._routes.get(worker)) is not None:
            _send(self._router, route, _encoder.encode(message))

    async def receive(self) -> Received:
        """The next message of any worker."""
        while True:
            route, frame = await self._router.recv_multipart(copy=False)
            worker = str(frame.get("User-Id"))
            try:
                message = _decoder.decode(frame.buffer)
            except msgspec.DecodeError as error:
                logger.warning("worker %s said what cannot be read: %s", worker, error)
                continue
            if isinstance(message, AskVariables):
                answer = Variables(self._environments.get(worker, {}))
                _send(self._router, route.bytes, _encoder.encode(answer))
                continue
            # Beats come by a connection of their own, on which nothing is ever answered.
            if not isinstance(message, Beat):
                self._routes[worker] = route.bytes
            return Received(worker, message)

    async def _keep_door(self) -> None:
        """Let in the workers whose keys are admitted, each under its own name."""
        while True:
            request = await self._door.recv_multipart()
            version, number, key = request[0], request[1], request[-1]
            worker = self._admitted.get(key)
            code, words = (b"200", b"OK") if worker else (b"400", b"not admitted")
            name = (worker or "").encode()
            _send(self._door, version, number, code, words, name, b"")


def _send(socket: zmq.asyncio.Socket, *parts: bytes) -> None:
    """Send one message. It is queued before this returns, since queues have no bound."""
    for part in parts[:-1]:
        socket.send(part, zmq.SNDMORE)
    socket.send(parts[-1])
