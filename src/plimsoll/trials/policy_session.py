"""A trial's session with the policy: opened before the agent, sealed after it, judged between.

A policy that did not answer is never a reward: where the agent ended on a failure of the
policy's server the trial is void, whatever the agent itself made of it. So is one whose agent
had no answer at all, or spent at least half of its time on a request that nothing came for.

Time in which the policy is paused for new weights is not the agent's: it counts neither towards
its time nor as silence. A pause that does not end makes the trial void.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.agents.protocol import Agent, Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.errors import AgentError, PolicyError, TrajectoryError
from plimsoll.core.stopwatch import Stopwatch
from plimsoll.gateway.access import Access
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.session import Session
from plimsoll.sandboxes.protocol import Sandbox

__all__ = ["PolicyAccess", "PolicySession", "PolicyUsage", "open_policy_session"]

LONGEST_PAUSE = 720.0
TOO_SILENT = 0.5
"""The share of an agent's time after which a policy that says nothing is at fault for its end."""


@dataclass(frozen=True, slots=True)
class PolicyAccess:
    """What trials need to let their agents ask the policy."""

    gateway: Gateway
    limits: Limits
    """Of each trial's session."""
    blobs: Path
    """Where the run keeps what is too large for a trajectory."""
    model: str = ""
    """What the policy is called at its server, where that is known."""
    longest_pause: float = LONGEST_PAUSE
    """Seconds for which an agent waits for a paused policy; then its trial is void."""
    seed: int | None = None
    """What its answers are sampled with, beside the trial; the server's choice where None."""


@dataclass(frozen=True, slots=True)
class PolicyUsage:
    """What a trial used of the policy. Every prompt counts, whatever it repeats."""

    turns: int
    prompt_tokens: int
    answer_tokens: int


@asynccontextmanager
async def open_policy_session(
    policy: PolicyAccess | None,
    agent: Agent,
    folder: Path,
    about: Mapping[str, str],
    rollout: str = "",
) -> AsyncGenerator["PolicySession | None"]:
    """The session of one trial, where its agent needs one. Its trajectory is kept in `folder`.

    A `rollout` that is run again is answered as before, where the policy has a seed. The
    trajectory is closed with the agent's last ending; with `void` where the trial came to
    none, or `cancelled`. One that cannot be written to its end is the trial's error.
    """
    if not agent.needs_policy:
        yield None
        return
    if policy is None:
        raise AgentError(f"the agent {agent.name} needs a policy: name one with --policy URL")
    told = {**about, "agent_version": agent.version, "model": policy.model}
    session = await policy.gateway.open(
        folder,
        blobs=policy.blobs,
        limits=policy.limits,
        about={name: value for name, value in told.items() if value},
        seed="" if policy.seed is None or not rollout else f"{policy.seed} {rollout}",
    )
    talking = PolicySession(policy, session)
    try:
        yield talking
    except asyncio.CancelledError:
        with suppress(TrajectoryError):  # a cancellation comes before what else went wrong
            await session.end("cancelled")
        raise
    except Exception as error:  # whatever ends a trial; only noted here
        await session.end("void", " ".join(str(error).split()))
        raise
    await session.end(talking.last.ending.value, talking.last.detail)


class PolicySession:
    """What a trial does with its session."""

    def __init__(self, policy: PolicyAccess, session: Session) -> None:
        self._gateway = policy.gateway
        self._session = session
        self.longest_pause = policy.longest_pause
        self._before = 0
        """Exchanges of earlier steps."""
        self.last = Outcome()
        """How the agent ended the step that ran last."""

    @property
    def clock(self) -> Stopwatch:
        """The agent's time: it stands still while the policy is paused for new weights."""
        return self._session.clock

    @property
    def turns(self) -> int:
        """Exchanges of the step that runs, or ran last."""
        return self._session.exchanges - self._before

    @property
    def tokens(self) -> int:
        """What the session has counted so far."""
        return self._session.tokens

    @property
    def spent(self) -> PolicyUsage:
        """By all steps so far."""
        session = self._session
        return PolicyUsage(session.exchanges, session.prompt_tokens, session.answer_tokens)

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

    def failed(self, limit: float | None) -> PolicyError | None:
        """Why what the agent did says nothing of the policy, where that is so.

        `limit` is how many seconds of its clock the step gave it.
        """
        session = self._session
        if session.failure:
            return PolicyError(session.failure)
        silent = session.silent_for
        if limit is not None and silent >= limit * TOO_SILENT:
            return PolicyError(
                f"the policy said nothing for {silent:.3g} s of the agent's {limit:g} s"
            )
        if not session.exchanges and session.refusal:
            return PolicyError(f"the policy answered nothing; it refused: {session.refusal}")
        return None

    def judge(self, agent: Agent, outcome: Outcome, limit: float | None) -> Outcome:
        """The agent's ending in the light of what the session saw."""
        if (error := self.failed(limit)) is not None:
            raise error
        if self._session.ending is Ending.BUDGET:
            outcome = replace(outcome, ending=Ending.BUDGET, detail=self._session.detail)
        elif not self.turns:
            said = f" ({outcome.detail})" if outcome.detail else ""
            raise AgentError(f"{agent.name} had no answer of the policy before its end{said}")
        self.last = outcome
        return outcome
