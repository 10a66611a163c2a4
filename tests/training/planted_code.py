"""Code in a pickle, to check that reading a file does not execute it."""

import os
from pathlib import Path

__all__ = ["Planted"]


class Planted:
    """An object whose unpickling creates a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._folder),)
