"""A trial's session with the policy: opened before the agent, sealed after it, judged between.

A policy that did not answer is never a reward: where the agent ended on a failure of the
policy's server the trial is void, whatever the agent itself made of it.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.agents.protocol import Agent, Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.errors import AgentError, PolicyError
from plimsoll.gateway.access import Access
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.session import Session
from plimsoll.sandboxes.protocol import Sandbox

__all__ = ["Policy", "Talk", "talk"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What trials need to let their agents ask the policy."""

    gateway: Gateway
    limits: Limits
    """Of each trial's session."""
    blobs: Path
    """Where the run keeps what is too large for a trajectory."""


@asynccontextmanager
async def talk(
    policy: Policy | None, agent: Agent, folder: Path, about: Mapping[str, str]
) -> AsyncGenerator["Talk | None"]:
    """The session of one trial, where its agent needs one. Its trajectory is kept in `folder`."""
    if not agent.needs_policy:
        yield None
        return
    if policy is None:
        raise AgentError(f"the agent {agent.name} needs a policy: name one with --policy URL")
    session = await policy.gateway.open(
        folder, blobs=policy.blobs, limits=policy.limits, about=about
    )
    try:
        yield Talk(policy.gateway, session)
    finally:
        await session.end()


class Talk:
    """What a trial does with its session."""

    def __init__(self, gateway: Gateway, session: Session) -> None:
        self._gateway = gateway
        self._session = session
        self._before = 0
        """Exchanges of earlier steps."""

    @property
    def turns(self) -> int:
        """Exchanges of the step that runs, or ran last."""
        return self._session.exchanges - self._before

    @property
    def tokens(self) -> int:
        """What the session has counted so far."""
        return self._session.tokens

    @asynccontextmanager
    async def reach(self, agent: Agent, sandbox: Sandbox) -> AsyncGenerator[Access]:
        """The way to the policy from where the agent runs, open as long as the agent does."""
        self._before = self._session.exchanges
        if not agent.inside:
            yield self._session.access(self._gateway.port)
            return
        door = await sandbox.serve(0, self._gateway.connect)
        try:
            yield self._session.access(door.port)
        finally:
            await door.close()

    def failed(self) -> PolicyError | None:
        """Why nothing the agent did says anything of the policy, where that is so."""
        return PolicyError(self._session.failure) if self._session.failure else None

    def judge(self, agent: Agent, outcome: Outcome) -> Outcome:
        """The agent's ending in the light of what the session saw."""
        if (error := self.failed()) is not None:
            raise error
        if self._session.ending is Ending.BUDGET:
            return replace(outcome, ending=Ending.BUDGET, detail=self._session.detail)
        if not self.turns and outcome.ending is not Ending.BUDGET:
            said = f" ({outcome.detail})" if outcome.detail else ""
            raise AgentError(f"{agent.name} ended without asking the policy anything{said}")
        return outcome
