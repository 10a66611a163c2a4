"""Environment variables that make worker processes use a stand-in for the trial environment."""

from pathlib import Path

__all__ = ["stand_in"]

_FOLDER = Path(__file__).parent / "stand_in"


def stand_in(named: str, *folders: Path) -> dict[str, str]:
    """The variables for the stand-in `named`, a `module:function` that imports from `folders`."""
    path = [str(_FOLDER), str(_FOLDER.parent), *map(str, folders)]
    return {"PYTHONPATH": ":".join(path), "PLIMSOLL_STAND_IN": named}
