"""The line about a run's sandboxes: starts, resets and reuse."""

from plimsoll.cli.views.text import duration, plain
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.pool.stats import PoolStats, Quantiles

__all__ = ["pool_line"]


def pool_line(stats: PoolStats) -> str:
    """Starts, resets and reuse of the run's sandboxes."""
    pooled = stats.reuse is not Reuse.NONE
    parts: list[str] = []
    if pooled:
        leases = stats.hits + stats.cold_starts
        parts.append(f"{stats.hits:,} of {leases:,} leases were ready")
    measured = {"start": stats.start, "reset": stats.reset}
    if pooled:
        measured |= {"wait warm": stats.wait_warm, "cold": stats.wait_cold}
    parts += [f"{what} {_figures(one)}" for what, one in measured.items() if one is not None]
    if stats.failed_starts:
        parts.append(f"failed starts {stats.failed_starts:,}")
    if stats.retired:
        reasons = ", ".join(f"{plain(why)} ({count:,})" for why, count in stats.retired.items())
        parts.append(f"retired: {reasons}")
    return f"{f'pool {stats.reuse}' if pooled else 'sandboxes'}: {' · '.join(parts)}"


def _figures(figures: Quantiles) -> str:
    return f"p50 {_short(figures.p50)} p99 {_short(figures.p99)}"


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)
