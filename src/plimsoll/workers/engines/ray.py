"""Workers on the nodes of a Ray cluster, each a process owned by a Ray actor.

Ray places the actor and detects the death of its node. The worker is a child process of the actor,
not the actor itself: it has its own signals and memory, its last output is kept, and it can be
killed while it is stopped. It dies with its actor. Messages to a worker never go through Ray.

Neither do secrets. Ray shows a runtime environment to everyone: on command lines, in its logs and
in its tables. So the actor makes the worker's key pair itself, and fetches the worker's
environment variables over the run's encrypted channel before it starts the worker.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from plimsoll.core.errors import PlimsollError, UsageError, WorkerError
from plimsoll.sandboxes.host.temporary import remove_leftovers
from plimsoll.sandboxes.trees.removal import remove_folder
from plimsoll.workers.engines.process import ProcessEngine, WorkerProcess
from plimsoll.workers.engines.protocol import Credentials, Exit, Invitation, StartRequest
from plimsoll.workers.worker.connection import fetch_environment
from plimsoll.workers.worker.scratch import make_folder

__all__ = ["RayEngine", "RayOptions"]

_ANSWER_SECONDS = 3.0
_GONE_SECONDS = 10.0
_LOOK_SECONDS = 5.0
"""Interval of checking the cluster's nodes while a worker waits for one."""
_LINES = 20
_AT_START = "actor_init_failed"
_ADVICE = (
    "If it runs, it may want a token: export RAY_AUTH_MODE=token and the cluster's RAY_AUTH_TOKEN, "
    "or RAY_AUTH_TOKEN_PATH, where the run is started. If not, start one with `ray start --head`, "
    "or leave its address out."
)
_OWN_NAMES = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The cluster, and the placement of workers on it."""

    address: str = ""
    """`auto`, or a cluster's address; empty to start a cluster for the run."""
    resources: dict[str, float] = field(default_factory=dict[str, float])
    """Resources of one worker: CPU, GPU, memory in bytes, or a custom resource."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Required labels of its node."""
    run: str = ""
    """The run that owns the temporary files of a cluster started for it."""

    def placement(self) -> dict[str, Any]:
        """The placement as options of Ray."""
        own = {
            _OWN_NAMES[name]: much for name, much in self.resources.items() if name in _OWN_NAMES
        }
        others = {name: much for name, much in self.resources.items() if name not in _OWN_NAMES}
        placed: dict[str, Any] = {**own, "resources": others, "scheduling_strategy": "SPREAD"}
        return {**placed, "label_selector": self.labels} if self.labels else placed

    def has_room(self, nodes: Iterable[Mapping[str, Any]]) -> bool:
        """True if a worker would fit on one of these nodes if the node were empty."""
        return any(
            node["Alive"]
            and all(node["Resources"].get(n, 0) >= m for n, m in self.resources.items())
            for node in nodes
        )

    def __str__(self) -> str:
        needs = [f"{much:g} {name}" for name, much in self.resources.items()]
        return ", ".join(needs + [f"{name}={value}" for name, value in self.labels.items()])


class WorkerActor:
    """The actor: owns a worker's process on its node."""

    def __init__(self) -> None:
        self._engine = ProcessEngine()
        self._credentials: Credentials | None = None
        self._worker: WorkerProcess | None = None

    async def accept(self, invitation: Invitation) -> str:
        """Make the worker's key pair and return its public key. The secret key stays here."""
        self._credentials = Credentials.make(invitation)
        return self._credentials.public_key

    async def start(self) -> str:
        """Start the worker, whose key is admitted now, and return its location."""
        assert self._credentials is not None, "no invitation was accepted"
        environment = await fetch_environment(self._credentials)
        self._worker = self._engine.launch(self._credentials, environment)
        return f"node {_import_ray().util.get_node_ip_address()}, {self._worker.where}"

    async def ended(self) -> Exit:
        assert self._worker is not None, "no worker was started"
        return await self._worker.ended()

    async def kill(self) -> None:
        if self._worker is not None:
            await self._worker.kill()


class RayWorker:
    """A worker on some node. It ends with its process, its actor or its node."""

    def __init__(
        self,
        actor: Any,  # noqa: ANN401 - Ray's handle of an actor, whose calls have no types
        request: StartRequest,
        options: RayOptions,
    ) -> None:
        self._ray = _import_ray()
        self._actor = actor
        self._options = options
        self._is_placed = False
        self._where = f"waits for a node with {str(options) or 'room'}"
        self._end: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.has_room = True
        """False if no node is known to be large enough."""
        self.life = asyncio.create_task(self._live(request))

    @property
    def where(self) -> str:
        return self._where

    @property
    def is_placed(self) -> bool:
        return self._is_placed

    async def ended(self) -> Exit:
        return await asyncio.shield(self._end)

    async def kill(self) -> None:
        """Kill the process first: after the death of its actor it would live on for some time."""
        if self._is_placed and not self._end.done():
            with contextlib.suppress(TimeoutError, self._ray.exceptions.RayError):
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._actor.kill.remote()
        self._ray.kill(self._actor)
        await asyncio.wait([self.life], timeout=_GONE_SECONDS)
        self.life.cancel()
        # An unreachable node: its worker ends by itself once it loses the run.
        self._over(Exit("its node does not answer", killed=True))

    async def _live(self, request: StartRequest) -> None:
        try:
            public_key = await self._start_actor(request.invitation)
            self._is_placed = True
            self._where = "on a node, about to start"
            request.admit(public_key)
            self._where = await self._actor.start.remote()
            self._over(await self._actor.ended.remote())
        except self._ray.exceptions.RayError as error:
            self._over(_why(error))
        finally:
            self._ray.kill(self._actor)

    async def _start_actor(self, invitation: Invitation) -> str:
        """Wait until the actor is on a node and answers, without a time limit."""
        answer: asyncio.Future[str] = asyncio.ensure_future(self._actor.accept.remote(invitation))
        try:
            while not (await asyncio.wait([answer], timeout=_LOOK_SECONDS))[0]:
                nodes = await asyncio.to_thread(self._ray.nodes)
                self.has_room = self._options.has_room(nodes)
            return answer.result()
        finally:
            answer.cancel()

    def _over(self, exit: Exit) -> None:
        if not self._end.done():
            self._end.set_result(exit)


class RayEngine:
    """Starts workers on a Ray cluster: an existing one, or one started for the run."""

    def __init__(self, options: RayOptions | None = None) -> None:
        self._options = options or RayOptions()
        self._alive: set[RayWorker] = set()
        self._actors: Any = None
        self._joined = False
        self._folder: Path | None = None
        self._host = ""

    @property
    def host(self) -> str:
        return self._host

    async def __aenter__(self) -> Self:
        # In a thread: it takes seconds, and only there leaves Python's handler of SIGTERM alone.
        await asyncio.to_thread(self._join)
        _take_sigterm_back()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await asyncio.gather(*(worker.kill() for worker in self._alive))
        finally:
            await asyncio.to_thread(self._leave)

    def describe_wait(self, workers: int) -> str:
        said = f"waiting for Ray to place {workers} worker{'' if workers == 1 else 's'}"
        if needs := str(self._options):
            said += f" (needs {needs} each)"
        if not all(worker.has_room for worker in self._alive if not worker.is_placed):
            said += ", and no node of the cluster is that large now"
        return said

    async def start(self, request: StartRequest) -> RayWorker:
        worker = RayWorker(self._actors.remote(), request, self._options)
        self._alive.add(worker)
        worker.life.add_done_callback(lambda _: self._alive.discard(worker))
        return worker

    def _join(self) -> None:
        ray = _import_ray()
        # If the calling program is already connected to a cluster, the run uses that one.
        if not ray.is_initialized():
            self._joined = True
            try:
                _probe(self._options.address)
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **self._cluster())
            except (OSError, RuntimeError, ValueError) as error:
                self._leave()
                raise WorkerError(
                    f"the Ray cluster {self._options.address or 'of the run'} cannot be used: "
                    f"{error}\n{_ADVICE}"
                ) from error
        self._actors = ray.remote(max_restarts=0, **self._options.placement())(WorkerActor)
        self._host = ray.util.get_node_ip_address()

    def _cluster(self) -> dict[str, Any]:
        if self._options.address:
            return {"address": self._options.address}
        remove_leftovers()
        self._folder = make_folder(self._options.run)
        return {"address": "local", "include_dashboard": False, "_temp_dir": str(self._folder)}

    def _leave(self) -> None:
        if self._joined:
            _import_ray().shutdown()
        if self._folder is not None:
            with contextlib.suppress(OSError):  # the next run removes it
                remove_folder(self._folder)


def _import_ray() -> Any:  # noqa: ANN401 - it may not be installed where types are checked
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the ray engine needs the package {error.name}: pip install 'plimsoll-rl[ray]'"
        ) from None


def _take_sigterm_back() -> None:
    """Reinstall Python's SIGTERM handler.

    Ray's C-level handler writes a trace and aborts the process three seconds later.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _probe(address: str) -> None:
    """Check the address. Raises `OSError` if nothing listens there: Ray would retry for minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()


def _why(error: Exception) -> Exit:
    """The exit of a worker from a Ray error. An actor that failed by itself would fail again."""
    ray = _import_ray()
    cause = getattr(error, "cause", None)
    if isinstance(cause, PlimsollError):  # raised by the actor
        return Exit(str(cause))
    output = "\n".join(str(error).strip().splitlines()[-_LINES:])
    if isinstance(error, ray.exceptions.RayActorError) and not getattr(error, _AT_START, False):
        return Exit("its actor or its node is gone", output, killed=True)
    return Exit("Ray could not start it", output)
