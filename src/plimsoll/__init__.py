"""Plimsoll trains coding agents by reinforcement learning and keeps five load lines.

Importing it is quick: it imports neither torch nor ray, nor its own subpackages.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plimsoll.runs.rollouts import Rollouts as Rollouts

__all__ = ["Rollouts", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "Rollouts":
        # Imported when it is asked for.
        from plimsoll.runs.rollouts import Rollouts

        return Rollouts
    raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
