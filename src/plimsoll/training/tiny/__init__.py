"""The tiny policy: a small transformer that has half learned four kinds of tasks, so that
reinforcement learning has something to show on any machine.

`folder()` is an ordinary Hugging Face folder; `python -m plimsoll.training.tiny` makes it anew.
"""

from pathlib import Path

__all__ = ["folder"]


def folder() -> Path:
    """Where the weights that come with Plimsoll are."""
    return Path(__file__).parent / "model"
