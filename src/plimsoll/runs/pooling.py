"""Which pool a run has, and what is told to it of the tickets that come next."""

from collections.abc import Mapping

from plimsoll.agents.protocol import Agent
from plimsoll.core.errors import PlimsollError
from plimsoll.runs.config import PoolConfig
from plimsoll.runs.tickets import Ticket
from plimsoll.sandboxes.pool.demand import Expectation
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.assets.manifest import Assets
from plimsoll.trials.environment import agent_sandbox, labels_for

__all__ = ["PoolHints", "hints_for", "make_pool", "measured", "usual_reuse"]

_STARTS_AT_ONCE = frozenset({"local"})
"""Backends that start a sandbox in some 15 ms: to have one ready is worth less than it takes."""


def usual_reuse(backend: str) -> Reuse:
    """How sandboxes are used where nobody says.

    A container takes a few tenths of a second to start and to remove, in which a trial can run;
    `reset` saves more but gives up a guarantee, which is for a person to decide.
    """
    return Reuse.NONE if backend in _STARTS_AT_ONCE else Reuse.FRESH


def make_pool(backend: Backend, config: PoolConfig, *, reuse: str | None, concurrency: int) -> Pool:
    """A pool around a backend: as asked for, else by the config, else as is usual."""
    asked = reuse or config.reuse
    options = PoolOptions(
        concurrency=concurrency,
        reuse=Reuse(asked) if asked else usual_reuse(backend.name),
        ahead=config.ahead,
        uses=config.uses,
    )
    return Pool(backend, options)


def measured(pool: Pool) -> PoolStats | None:
    """The statistics of a pool that was asked for anything."""
    stats = pool.stats
    return stats if stats.start is not None or stats.failed_starts else None


def hints_for(
    pool: Pool, run: str, assets: Assets | None, agents: Mapping[str, Agent]
) -> "PoolHints | None":
    """What to tell a pool's demand by; nothing where nothing is started ahead."""
    return None if pool.options.reuse is Reuse.NONE else PoolHints(pool, run, assets, agents)


class PoolHints:
    """Tells a pool which sandboxes the coming trials will ask for."""

    def __init__(
        self, pool: Pool, run: str, assets: Assets | None, agents: Mapping[str, Agent]
    ) -> None:
        self._pool = pool
        self._agents = agents
        self._run = run
        self._assets = assets
        self._expected: dict[Ticket, Expectation] = {}

    def coming(self, ticket: Ticket) -> None:
        labels = labels_for(ticket.task, self._run, ticket.attempt)
        try:
            mounts = self._agents[ticket.agent].mounts
            wanted = agent_sandbox(ticket.task, labels, self._assets, mounts)
        except PlimsollError:
            return  # Its own trial says so.
        self._expected[ticket] = self._pool.expect(wanted.source, wanted.spec)

    def over(self, ticket: Ticket) -> None:
        if (expected := self._expected.pop(ticket, None)) is not None:
            expected.withdraw()
