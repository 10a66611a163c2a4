"""The tiny policy: a small transformer that solves some tasks of four kinds, so that reinforcement
learning shows an effect on any machine.

`folder()` is an ordinary Hugging Face folder; `python -m plimsoll.training.tiny` makes it again.
"""

from pathlib import Path

__all__ = ["folder"]


def folder() -> Path:
    """The folder of the weights that come with Plimsoll."""
    return Path(__file__).parent / "model"
