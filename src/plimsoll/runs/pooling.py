"""Which pool a run has, and what is told to it of the tickets that come next."""

from collections.abc import Callable

from plimsoll.agents.protocol import Agent
from plimsoll.config.file import Config
from plimsoll.config.sandboxes import PoolConfig
from plimsoll.core.errors import PlimsollError
from plimsoll.core.ids import Labels
from plimsoll.runs.tickets import Ticket
from plimsoll.sandboxes.pool.demand import Expectation
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.sandboxes.protocol import Backend
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.trials.sandbox_request import agent_sandbox, labels_for

__all__ = ["PoolHints", "Who", "hints_for", "make_pool", "measured", "reuse_of", "usual_reuse"]

Who = Callable[[str], Agent]
"""The agent that a ticket names."""

_STARTS_AT_ONCE = frozenset({"local"})
"""Backends that start a sandbox in some 15 ms: to have one ready is worth less than it takes."""


def usual_reuse(backend: str) -> Reuse:
    """How sandboxes are used where nobody says.

    A container takes a few tenths of a second to start and to remove, in which a trial can run;
    `reset` saves more but gives up a guarantee, which is for a person to decide.
    """
    return Reuse.NONE if backend in _STARTS_AT_ONCE else Reuse.FRESH


def reuse_of(config: Config) -> Reuse:
    """How the sandboxes of a run are used."""
    asked = config.pool.reuse
    return Reuse(asked) if asked else usual_reuse(config.run.backend)


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


def measured(stats: PoolStats) -> PoolStats | None:
    """The statistics where anything was asked for."""
    return stats if stats.start is not None or stats.failed_starts else None


def hints_for(pool: Pool, run: str, assets: StagedAssets | None, who: Who) -> "PoolHints | None":
    """What to tell a pool's demand by; nothing where nothing is started ahead."""
    return None if pool.options.reuse is Reuse.NONE else PoolHints(pool, run, assets, who)


class PoolHints:
    """Tells a pool which sandboxes the coming trials will ask for."""

    def __init__(self, pool: Pool, run: str, assets: StagedAssets | None, who: Who) -> None:
        self._pool = pool
        self._who = who
        self._run = run
        self._assets = assets
        self._expected: dict[Ticket, Expectation] = {}

    def coming(self, ticket: Ticket) -> None:
        if (expected := self.expect(ticket)) is not None:
            self._expected[ticket] = expected

    def over(self, ticket: Ticket) -> None:
        if (expected := self._expected.pop(ticket, None)) is not None:
            expected.withdraw()

    def expect(self, ticket: Ticket) -> Expectation | None:
        """Expect a ticket's sandbox until the answer is withdrawn; None where it has none."""
        try:
            mounts = self._who(ticket.agent).mounts
            wanted = agent_sandbox(ticket.task, self._labels(ticket), self._assets, mounts)
        except PlimsollError:
            return None  # Its own trial says so.
        return self._pool.expect(wanted.source, wanted.spec)

    def claim(self, expected: Expectation, ticket: Ticket) -> None:
        """What was expected of any ticket of its kind is this one's."""
        expected.claim(self._labels(ticket))

    def _labels(self, ticket: Ticket) -> Labels:
        return labels_for(ticket.task, self._run, ticket.attempt)
