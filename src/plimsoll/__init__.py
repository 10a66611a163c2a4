"""Plimsoll trains coding agents by reinforcement learning and keeps five load lines.

Importing it is cheap: it pulls in neither torch nor ray, nor any of its own rooms.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
