"""The policy of a run: its upstreams, and the gateway in front of them."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from plimsoll.agents.protocol import Agent
from plimsoll.config.policy import PolicyConfig
from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.core.versions import Version
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import MAX_BODY_BYTES, MAX_CONCURRENT, Limits
from plimsoll.gateway.upstreams.capabilities import Capabilities
from plimsoll.gateway.upstreams.factory import make_upstream, probe_policy
from plimsoll.gateway.upstreams.gate import Gate
from plimsoll.gateway.upstreams.openai_server import Timeouts
from plimsoll.trials.policy_session import PolicyAccess

__all__ = ["PolicyService", "PolicySpec", "ServedPolicy", "policy_for"]

PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy that the caller serves for as long as rollouts run."""

    urls: tuple[str, ...]
    key: str | None = field(default=None, repr=False)
    model: str | None = None


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The policy that a run uses."""

    urls: tuple[str, ...]
    model: str | None
    limits: Limits
    seed: int | None = None
    found: Capabilities | None = None
    """Features of its servers, once probed; None for a script."""
    patience: float = PATIENCE
    """Seconds that a request waits while no server is up."""
    longest_pause: float = 0.0
    """Longest pause for new weights, in seconds; 0 if the servers are never paused."""
    plain: bool = False
    """Sample from the unmodified distribution of the model, whatever agents ask for."""

    async def probed(self, key: str | None = None) -> "PolicySpec":
        """The spec with the features of its servers. Raises `PolicyError` if none answers."""
        try:
            found = await probe_policy(self.urls, model=self.model, key=key)
        except PolicyError as error:
            first = self.urls[0]
            raise PolicyError(
                f"{error}; nothing was started; check again with: plimsoll gateway probe {first}"
            ) from error
        return replace(self, found=found)


def policy_for(
    agent: Agent,
    config: PolicyConfig,
    urls: tuple[str, ...],
    model: str | None,
    turns: int | None,
) -> PolicySpec | None:
    """The policy of the command line, else of the config. None if the agent uses no policy."""
    if not agent.needs_policy:
        if urls:
            raise UsageError(f"the agent {agent.name} asks no policy: leave --policy out")
        return None
    if not (urls or config.urls):
        raise UsageError(
            f"the agent {agent.name} needs a policy: name its server as [policy] urls in the "
            "config, or for `plimsoll eval` with --policy URL"
        )
    _check_limits(config)
    limits = Limits(
        turns=turns or config.turns,
        tokens=config.tokens,
        concurrent=config.concurrent,
        body_bytes=config.body_mb << 20,
        media_hosts=config.media_hosts,
    )
    seed = config.seed if config.seeded else None
    return PolicySpec(
        urls or config.urls,
        model or config.model,
        limits,
        seed,
        plain=config.sampling == "model",
    )


def _check_limits(config: PolicyConfig) -> None:
    bounds = {"concurrent": MAX_CONCURRENT, "body_mb": MAX_BODY_BYTES >> 20}
    for name, most in bounds.items():
        given = getattr(config, name)
        if given > most:
            raise UsageError(f"[policy] {name} is {given}: give {most} or less")


def _waits(pause: float) -> Timeouts:
    """The default timeouts, each extended by the longest pause of the servers."""
    usual = Timeouts()
    return replace(
        usual,
        first=usual.first + pause,
        between=usual.between + pause,
        total=usual.total + pause,
    )


class PolicyService:
    """The gateway of a run, up while it is entered."""

    def __init__(self, spec: PolicySpec, blobs: Path) -> None:
        self._spec = spec
        self._blobs = blobs
        self._stack = AsyncExitStack()
        self._policy: PolicyAccess | None = None
        self._gate: Gate | None = None

    @property
    def policy(self) -> PolicyAccess:
        assert self._policy is not None, "the service is not entered"
        return self._policy

    def set_version(self, version: Version) -> None:
        """Set the version that generates from now on."""
        assert self._gate is not None, "the service is not entered"
        self._gate.resume(version)

    def set_paused(self, paused: bool, *, drains: bool = False) -> None:
        """Mark the servers as paused for new weights, or resumed. They hold requests themselves."""
        assert self._gate is not None, "the service is not entered"
        if paused:
            self._gate.pauses.begin(drains=drains)
        else:
            self._gate.pauses.end()

    async def __aenter__(self) -> Self:
        spec = self._spec
        async with AsyncExitStack() as stack:
            upstream = await make_upstream(
                spec.urls,
                model=spec.model,
                capabilities=spec.found,
                timeouts=_waits(spec.longest_pause),
                patience=spec.patience,
                plain=spec.plain,
            )
            stack.push_async_callback(upstream.close)
            self._gate = upstream
            gateway = await stack.enter_async_context(Gateway(upstream, pauses=upstream.pauses))
            self._stack = stack.pop_all()
        self._policy = PolicyAccess(
            gateway,
            spec.limits,
            self._blobs,
            upstream.model,
            spec.longest_pause,
            spec.seed,
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._policy = self._gate = None
        await self._stack.aclose()
