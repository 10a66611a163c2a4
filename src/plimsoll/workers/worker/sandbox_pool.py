"""The sandbox pool of a worker: made by the config, else by the defaults of its backend."""

from plimsoll.config.file import Config
from plimsoll.config.sandboxes import PoolConfig
from plimsoll.sandboxes.pool.options import PoolOptions, Reuse
from plimsoll.sandboxes.pool.pool import Pool
from plimsoll.sandboxes.pool.stats import PoolStats
from plimsoll.sandboxes.protocol import Backend

__all__ = ["make_pool", "measured", "reuse_of", "usual_reuse"]

_FAST_BACKENDS = frozenset({"local"})
"""Backends that start a sandbox in milliseconds: prewarming would cost more than it saves."""


def usual_reuse(backend: str) -> Reuse:
    """The default reuse of a backend.

    A container takes a few tenths of a second to start and to remove, so it is started ahead.
    `reset` saves more but weakens isolation between trials, so it is never a default.
    """
    return Reuse.NONE if backend in _FAST_BACKENDS else Reuse.FRESH


def reuse_of(config: Config) -> Reuse:
    """The reuse of a run's sandboxes."""
    asked = config.pool.reuse
    return Reuse(asked) if asked else usual_reuse(config.run.backend)


def make_pool(backend: Backend, config: PoolConfig, *, concurrency: int) -> Pool:
    """Make a pool around a backend, by the config's reuse, else the default."""
    asked = config.reuse
    options = PoolOptions(
        concurrency=concurrency,
        reuse=Reuse(asked) if asked else usual_reuse(backend.name),
        ahead=config.ahead,
        uses=config.uses,
    )
    return Pool(backend, options)


def measured(stats: PoolStats) -> PoolStats | None:
    """The statistics; None if no sandbox was requested."""
    return stats if stats.start is not None or stats.failed_starts else None
