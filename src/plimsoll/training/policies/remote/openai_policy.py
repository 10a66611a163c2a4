"""A policy on servers of vLLM or SGLang, which take its new weights from a folder."""

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
from plimsoll.training.policies.remote.publication import find_deviations, push_weights
from plimsoll.training.policies.remote.sglang import SGLang
from plimsoll.training.policies.remote.vllm import VLLM
from plimsoll.training.policies.remote.weight_folders import WeightFolders, is_label, new_label

__all__ = ["OpenAIPolicy"]

log = logging.getLogger(__name__)

NOTHING = Target("nothing")
"""What no server serves: asked for it, it says what it does serve."""


class OpenAIPolicy:
    """Several URLs are replicas. Implements `Policy`.

    What a replica serves is what it says itself, by a label that it was given together with the
    weights. One that is started again says another: it is given the weights of now again.
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
        """`folder` is for the weights of this run alone; every server reads it by this path."""
        if not urls:
            raise UsageError('policy = "openai" wants the URLs of its servers as [policy] urls')
        self.pausing: Pausing = nullcontext
        self._urls = tuple(normal_url(url) for url in urls)
        self._folders = WeightFolders(folder)
        self._kind: Literal["vllm", "sglang", "path"] = server
        self._model = model
        self._key = key or os.environ.get(KEY_VARIABLE)
        self._updating: Literal["interrupt", "drain"] = updating
        self._within = update_seconds
        self._watch_seconds = watch_seconds
        self._servers: tuple[WeightServer, ...] = ()
        self._served: Target | None = None
        """What every replica has confirmed last."""
        self._mixed = False
        """Whether some may serve something else, since not every one has confirmed what came
        after it."""
        self._renamed: set[str] = set()
        """Other names of what is served, which not every replica has confirmed."""
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
        """The folder of weights that stays when the policy is left; None where it wrote none."""
        return self._folders.current if self._has_swept else None

    def discard(self) -> None:
        """Nobody needs these weights any more, nor will: their run came to nothing."""
        if self._has_swept:
            self._folders.discard()

    async def publish(self, weights: Weights | None, version: Version) -> None:
        """Returns once every replica says that it serves them.

        On an error, and when it is cancelled, all replicas generate again, some of them maybe
        with the new weights; what is published next repairs that.
        """
        async with self._lock:
            before = self._served
            old = before.folder if before is not None else None
            if weights is None:
                target = await self._same(old, version)
            else:
                target = await self._new(weights, version)
            had = before if weights is None and not self._mixed else None
            # A server may load them and fail before it has their name.
            self._mixed = self._mixed or weights is not None
            if had is not None:
                self._renamed.add(target.label)
            with self.pausing():
                problems = await push_weights(self._servers, target, within=self._within, had=had)
            if problems:
                raise PolicyError(self._told(version, problems))
            self._served, self._mixed = target, False
            self._renamed.clear()
            if target.folder is not None:
                await asyncio.to_thread(self._folders.keep, target.folder, old)

    async def check(self) -> tuple[str, ...]:
        """Looks at what every replica serves. Those that serve something else are given the
        weights of now again, and named; `PolicyError` where one of them does not take them."""
        async with self._lock:
            served = self._served
            if served is None or self._mixed:
                return ()
            found = await find_deviations(self._servers, served)
            others = {server: o for server, o in found.items() if o not in self._renamed}
            for server, other in others.items():
                log.warning(
                    "the policy at %s serves %s, not %s: it is given the weights again; what it "
                    "generated meanwhile is of other weights than it counts as",
                    *(server.url, other, served.label),
                )
            if not others:
                return ()
            with self.pausing():
                problems = await push_weights(tuple(others), served, within=self._within)
            if problems:
                raise PolicyError("; ".join(problems.values()))
            return tuple(server.url for server in others)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(http_session())
            self._servers = tuple(self._server(http, url) for url in self._urls)
            await self._look_first()
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

    async def _look_first(self) -> None:
        """Finds before anything is generated who cannot be reached, or cannot take weights."""
        for server in self._servers:
            try:
                await server.other(NOTHING)
            except UpstreamFailure as failure:
                raise PolicyError(f"{failure}; nothing was started") from failure

    async def _new(self, weights: Weights, version: Version) -> Target:
        if not self._has_swept:
            # What a trainer that was killed left takes up the room that these need.
            await asyncio.to_thread(self._folders.sweep)
            self._has_swept = True
        label = new_label(version, given=True)
        target = Target(label, await asyncio.to_thread(self._folders.write, weights, label))
        await asyncio.to_thread(self._folders.point, target, version)
        return target

    async def _same(self, folder: Path | None, version: Version) -> Target:
        """The weights as they are, by another name."""
        if folder is None:
            await self._must_be_first()
        target = Target(new_label(version, given=folder is not None), folder)
        await asyncio.to_thread(self._folders.point, target, version)
        return target

    async def _must_be_first(self) -> None:
        """Servers may have been given weights before: by a run that is over, or in vain."""
        for server, label in (await find_deviations(self._servers, NOTHING)).items():
            if self._mixed or is_label(label):
                raise PolicyError(
                    f"the policy at {server.url} does not serve the weights that it was started "
                    f"with ({label}): start it again, or publish weights"
                )

    def _told(self, version: Version, problems: dict[str, str]) -> str:
        done = [url for url in self._urls if url not in problems]
        told = f"version {version} is not served by every replica: {'; '.join(problems.values())}."
        if done:
            told = f"{told} On it already: {', '.join(done)}."
        reads = f"(each of them reads {self._folders.root} by that path)"
        see = f"See to these servers and their logs {reads}"
        if self._served is None:
            return f"{told} Nothing was started. {see}, then try again."
        return (
            f"{told} It was not committed. {see}; the weights are given to all again when the run "
            "goes on."
        )

    async def _watch(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(self._watch_seconds)
            try:
                await self.check()
            except PolicyError as error:
                # What is published next meets it too, and stops the run.
                if str(error) != said:
                    said = str(error)
                    log.warning("%s", said)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
