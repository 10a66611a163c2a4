"""Policy session of a trial: opened before the agent starts, closed after it ends.

A policy that did not answer never leads to a reward. The trial is void if the agent ended on a
failure of the policy's server, whatever the agent reports. It is also void if the agent got no
answer at all, or waited for a response for at least half of its time.

Pauses of the policy for new weights count neither towards the agent's time nor as silence. A
pause that exceeds its limit makes the trial void.
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
from plimsoll.core.versions import Version
from plimsoll.gateway.access import Access
from plimsoll.gateway.gateway import Gateway
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.sessions.session import Session
from plimsoll.sandboxes.protocol import Sandbox
from plimsoll.trials.policy_usage import PolicyUsage

__all__ = ["MAX_PAUSE", "PolicyAccess", "PolicySession", "open_policy_session"]

MAX_PAUSE = 720.0
"""Seconds of one pause of the policy, unless the run sets another limit."""
MAX_SILENCE = 0.5
"""Share of an agent's time; if the policy is silent for longer, the trial is void."""


@dataclass(frozen=True, slots=True)
class PolicyAccess:
    """Access to the policy for the agents of trials."""

    gateway: Gateway
    limits: Limits
    """Limits of each session."""
    blobs: Path
    """Folder of the run for content too large for a trajectory."""
    model: str = ""
    """Model name at the policy's server, if known."""
    longest_pause: float = MAX_PAUSE
    """Maximum pause in seconds; a longer pause makes the trial void."""
    seed: int | None = None
    """Seed of the samples, combined with the trial; None leaves it to the server."""


@asynccontextmanager
async def open_policy_session(
    policy: PolicyAccess | None,
    agent: Agent,
    folder: Path,
    about: Mapping[str, str],
    seed_name: str = "",
) -> AsyncGenerator["PolicySession | None"]:
    """Open the session of one trial, if its agent needs one. Its trajectory is in `folder`.

    If the policy has a seed, a repeated `seed_name` gets the same answers. The trajectory is
    closed with the agent's last ending, or with `void` or `cancelled` if there is none. A
    trajectory that cannot be completed is an error of the trial.
    """
    if not agent.needs_policy:
        yield None
        return
    if policy is None:
        raise AgentError(f"the agent {agent.name} needs a policy: name one with --policy URL")
    metadata = {**about, "agent_version": agent.version, "model": policy.model}
    session = await policy.gateway.open(
        folder,
        blobs=policy.blobs,
        limits=policy.limits,
        about={name: value for name, value in metadata.items() if value},
        seed="" if policy.seed is None or not seed_name else f"{policy.seed} {seed_name}",
    )
    opened = PolicySession(policy, session)
    try:
        yield opened
    except asyncio.CancelledError:
        with suppress(TrajectoryError):  # cancellation takes precedence
            await session.end("cancelled")
        raise
    except Exception as error:  # recorded in the trajectory and raised again
        await session.end("void", " ".join(str(error).split()))
        raise
    await session.end(opened.last_outcome.ending.value, opened.last_outcome.detail)


class PolicySession:
    """The session of one trial with the policy."""

    def __init__(self, policy: PolicyAccess, session: Session) -> None:
        self._gateway = policy.gateway
        self._session = session
        self.longest_pause = policy.longest_pause
        self._before = 0
        """Exchanges of earlier steps."""
        self.last_outcome = Outcome()
        """Outcome of the latest step."""

    @property
    def clock(self) -> Stopwatch:
        """The agent's clock; it stops while the policy is paused for new weights."""
        return self._session.clock

    @property
    def turns(self) -> int:
        """Exchanges of the current or latest step."""
        return self._session.exchanges - self._before

    @property
    def tokens(self) -> int:
        """Tokens of the session so far."""
        return self._session.tokens

    @property
    def usage(self) -> PolicyUsage:
        """Usage of all steps so far."""
        session = self._session
        return PolicyUsage(session.exchanges, session.prompt_tokens, session.answer_tokens)

    @property
    def version_runs(self) -> tuple[tuple[Version, int], ...]:
        """Runs of (version, number of generated tokens) in the trajectory. Complete once the
        session has ended: an answer may be recorded until then."""
        return self._session.version_runs

    @property
    def blobs(self) -> tuple[Path, ...]:
        """The blobs that the trajectory refers to. Complete once the session has ended."""
        return tuple(self._session.blobs)

    @asynccontextmanager
    async def connect(self, agent: Agent, sandbox: Sandbox) -> AsyncGenerator[Access]:
        """Provide access to the policy from the agent's location while the agent runs."""
        self._before = self._session.exchanges
        if not agent.inside:
            yield self._session.access(self._gateway.port)
            return
        tunnel = await sandbox.serve(0, self._gateway.connect)
        try:
            yield self._session.access(tunnel.port)
        finally:
            await tunnel.close()

    def policy_failure(self, limit: float | None) -> PolicyError | None:
        """Return the failure of the policy that makes the agent's work meaningless, if any.

        `limit` is the time limit of the step in seconds of the agent's clock.
        """
        session = self._session
        if session.failure:
            return PolicyError(session.failure)
        silent = session.silent_for
        if limit is not None and silent >= limit * MAX_SILENCE:
            return PolicyError(
                f"the policy was silent for {silent:.3g} s of the agent's {limit:g} s"
            )
        if not session.exchanges and session.refusal:
            return PolicyError(f"the policy answered nothing; it refused: {session.refusal}")
        return None

    def check_outcome(self, agent: Agent, outcome: Outcome, limit: float | None) -> Outcome:
        """Check the session, and return the agent's outcome adjusted by its limits."""
        if (error := self.policy_failure(limit)) is not None:
            raise error
        if self._session.ending is Ending.BUDGET:
            outcome = replace(outcome, ending=Ending.BUDGET, detail=self._session.detail)
        elif not self.turns:
            detail = f" ({outcome.detail})" if outcome.detail else ""
            raise AgentError(f"{agent.name} got no answer of the policy before it ended{detail}")
        self.last_outcome = outcome
        return outcome
