"""Something that a task would fetch from a network."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Fetch", "Kind", "Phase"]


class Phase(StrEnum):
    """When a fetch happens; each phase has a network policy of its own."""

    BUILD = "build"
    SET_UP = "set-up"
    AGENT = "agent"
    TEST = "test"


class Kind(StrEnum):
    """What is fetched, as far as staging cares."""

    GIT = "git"
    URL = "url"
    WHEELS = "wheels"
    UV_TOOL = "uv-tool"
    """The uv program itself."""
    NPM = "npm"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Fetch:
    """One command, or one call of a Python grader, that needs the network."""

    tool: str
    """The program or library that fetches: git, curl, wget, pip, uvx, npm, apt-get, …"""
    kind: Kind
    what: tuple[str, ...]
    """The repository, the URLs, the requirements or the packages."""
    revision: str | None
    """The commit, tag or branch of a repository, where it can be seen."""
    target: str | None
    """Where a clone or a download goes; absolute where that can be known."""
    phase: Phase
    file: str
    """Relative to the task's folder, with `/`."""
    line: int
    guarded: bool
    """A failure is caught: by `||`, or as the condition of an `if` or a loop."""
