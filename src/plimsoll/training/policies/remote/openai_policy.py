"""The policy on inference servers, which load new weights from a folder."""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import aiohttp

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.core.versions import Version
from plimsoll.gateway.upstreams.factory import KEY_VARIABLE
from plimsoll.gateway.upstreams.failures import UpstreamFailure
from plimsoll.gateway.upstreams.openai_server import http_session, normal_url
from plimsoll.training.policies.protocol import Pausing, Weights
from plimsoll.training.policies.remote.path import PathServer
from plimsoll.training.policies.remote.protocol import Target, WeightServer
from plimsoll.training.policies.remote.sglang import SGLang
from plimsoll.training.policies.remote.vllm import VLLM
from plimsoll.training.policies.remote.weight_folders import WeightFolders, is_label, new_label

__all__ = ["OpenAIPolicy"]

RETRY_SECONDS = 1.0


async def push_weights(
    servers: Sequence[WeightServer],
    target: Target,
    *,
    within: float,
    previous: Target | None = None,
) -> dict[str, str]:
    """Load the target on all servers. Returns the problems by URL.

    Servers that still have `previous`, the same weights under another label, only get the new
    label. Each server generates again as soon as it is done: none waits for the slowest.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {s.url: group.create_task(_push(s, target, previous, within)) for s in servers}
    return {url: problem for url, task in tasks.items() if (problem := task.result())}


async def find_deviations(
    servers: Sequence[WeightServer], target: Target
) -> dict[WeightServer, str]:
    """The servers that report other weights than the target, each with the label that it reports.

    Unreachable servers are not among them: they do not generate either.
    """
    async with asyncio.TaskGroup() as group:
        tasks = {server: group.create_task(_deviation(server, target)) for server in servers}
    return {server: deviation for server, task in tasks.items() if (deviation := task.result())}


async def _push(
    server: WeightServer, target: Target, previous: Target | None, within: float
) -> str:
    problem = ""
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    # Ask first: an unreachable server need not be paused and resumed.
                    deviation = await server.deviation(previous or target)
                    same = previous is not None and deviation is None
                    await server.load(Target(target.label) if same else target)
                except UpstreamFailure as failure:
                    problem = failure.message
                    if not failure.retryable:
                        return problem
                except PolicyError as error:
                    return str(error)
                else:
                    return ""
                # The server may be restarting: repeat everything.
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        late = f"the policy at {server.url} did not load the weights within {within:g} s"
        return f"{late}; {problem}" if problem else f"{late}, at {server.stuck}"


async def _deviation(server: WeightServer, target: Target) -> str | None:
    try:
        return await server.deviation(target)
    except UpstreamFailure:
        return None
    except PolicyError as error:
        return str(error)


log = logging.getLogger(__name__)

NOTHING = Target("nothing")
"""A target that no server has: every server reports what it serves instead."""


class OpenAIPolicy:
    """Replicas of one policy. Implements `Policy`.

    Each replica reports the label of its weights, which it got together with them. A restarted
    replica reports another label and gets the current weights again.
    """

    def __init__(
        self,
        urls: Sequence[str],
        folder: Path,
        *,
        server: Literal["vllm", "sglang", "path"] = "vllm",
        model: str | None = None,
        key: str | None = None,
        updating: Literal["interrupt", "drain"] = "interrupt",
        update_seconds: float = 600.0,
        watch_seconds: float = 5.0,
    ) -> None:
        """`folder` belongs to this run; every server reads it by this path."""
        if not urls:
            raise UsageError('policy = "openai" needs the URLs of its servers as [policy] urls')
        self.pausing: Pausing = nullcontext
        self._urls = tuple(normal_url(url) for url in urls)
        self._folders = WeightFolders(folder)
        self._kind: Literal["vllm", "sglang", "path"] = server
        self._model = model
        self._key = key or os.environ.get(KEY_VARIABLE)
        self._updating: Literal["interrupt", "drain"] = updating
        self._timeout = update_seconds
        self._watch_seconds = watch_seconds
        self._servers: tuple[WeightServer, ...] = ()
        self._served: Target | None = None
        """The weights that every replica confirmed last."""
        self._mixed = False
        """Whether some replicas may have other weights, since a later publication failed."""
        self._renamed: set[str] = set()
        """Other labels of the same weights, which not every replica has confirmed."""
        self._has_swept = False
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()

    @property
    def urls(self) -> tuple[str, ...]:
        return self._urls

    @property
    def key(self) -> str | None:
        return self._key

    @property
    def model(self) -> str | None:
        return self._model

    @property
    def left(self) -> Path | None:
        """The weight folder that stays after exit; None if none was written."""
        return self._folders.current if self._has_swept else None

    def discard(self) -> None:
        """Remove the weights of a run that failed before its first trial."""
        if self._has_swept:
            self._folders.discard()

    async def publish(self, weights: Weights | None, version: Version) -> None:
        """Return once every replica reports the weights.

        After an error or a cancellation all replicas generate again, some possibly with the new
        weights; the next publication repairs that.
        """
        async with self._lock:
            before = self._served
            old = before.folder if before is not None else None
            if weights is None:
                target = await self._same(old, version)
            else:
                target = await self._new(weights, version)
            previous = before if weights is None and not self._mixed else None
            # A server may load them and fail before it has their label.
            self._mixed = self._mixed or weights is not None
            if previous is not None:
                self._renamed.add(target.label)
            with self.pausing():
                problems = await push_weights(
                    self._servers, target, within=self._timeout, previous=previous
                )
            if problems:
                raise PolicyError(self._failure(version, problems))
            self._served, self._mixed = target, False
            self._renamed.clear()
            if target.folder is not None:
                await asyncio.to_thread(self._folders.keep, target.folder, old)

    async def check(self) -> tuple[str, ...]:
        """Check the weights of every replica. Replicas with other weights get the current ones
        again; returns their URLs. Raises `PolicyError` if one does not load them."""
        async with self._lock:
            served = self._served
            if served is None or self._mixed:
                return ()
            found = await find_deviations(self._servers, served)
            others = {
                server: deviation
                for server, deviation in found.items()
                if deviation not in self._renamed
            }
            for server, other in others.items():
                log.warning(
                    "the policy at %s serves %s, not %s: sending the weights again; its answers "
                    "meanwhile are of other weights than recorded",
                    *(server.url, other, served.label),
                )
            if not others:
                return ()
            with self.pausing():
                problems = await push_weights(tuple(others), served, within=self._timeout)
            if problems:
                raise PolicyError("; ".join(problems.values()))
            return tuple(server.url for server in others)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(http_session())
            self._servers = tuple(self._server(http, url) for url in self._urls)
            await self._check_servers()
            watching = asyncio.create_task(self._watch())
            stack.push_async_callback(_ended, watching)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()
        if self._has_swept:
            await asyncio.to_thread(self._folders.sweep)

    def _server(self, http: aiohttp.ClientSession, url: str) -> WeightServer:
        match self._kind:
            case "vllm":
                return VLLM(http, url, self._key, self._updating)
            case "sglang":
                return SGLang(http, url, self._key, self._updating)
            case "path":
                return PathServer(http, url, self._key)

    async def _check_servers(self) -> None:
        """Find unreachable servers, and servers that take no weights, before anything starts."""
        for server in self._servers:
            try:
                await server.deviation(NOTHING)
            except UpstreamFailure as failure:
                raise PolicyError(f"{failure}; nothing was started") from failure

    async def _new(self, weights: Weights, version: Version) -> Target:
        if not self._has_swept:
            # Leftovers of a killed trainer take up space that these weights need.
            await asyncio.to_thread(self._folders.sweep)
            self._has_swept = True
        label = new_label(version, given=True)
        target = Target(label, await asyncio.to_thread(self._folders.write, weights, label))
        await asyncio.to_thread(self._folders.point, target, version)
        return target

    async def _same(self, folder: Path | None, version: Version) -> Target:
        """The current weights under a new label."""
        if folder is None:
            await self._check_initial_weights()
        target = Target(new_label(version, given=folder is not None), folder)
        await asyncio.to_thread(self._folders.point, target, version)
        return target

    async def _check_initial_weights(self) -> None:
        """Raise `PolicyError` if a server got weights before, from another run or a failed try."""
        for server, label in (await find_deviations(self._servers, NOTHING)).items():
            if self._mixed or is_label(label):
                raise PolicyError(
                    f"the policy at {server.url} does not serve its initial weights ({label}): "
                    "restart it, or publish weights"
                )

    def _failure(self, version: Version, problems: dict[str, str]) -> str:
        done = [url for url in self._urls if url not in problems]
        what = f"version {version} is not served by every replica: {'; '.join(problems.values())}."
        if done:
            what = f"{what} Replicas that have it: {', '.join(done)}."
        reads = f"(each of them reads {self._folders.root} by that path)"
        see = f"Check these servers and their logs {reads}"
        if self._served is None:
            return f"{what} Nothing was started. {see}, then try again."
        return (
            f"{what} It was not committed. {see}; the weights are published again when the run "
            "resumes."
        )

    async def _watch(self) -> None:
        logged = ""
        while True:
            await asyncio.sleep(self._watch_seconds)
            try:
                await self.check()
            except PolicyError as error:
                # The next publication fails with it, too, and stops the run.
                if str(error) != logged:
                    logged = str(error)
                    log.warning("%s", logged)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
