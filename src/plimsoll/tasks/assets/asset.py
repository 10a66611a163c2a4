"""What is staged, and which fetches it answers."""

from dataclasses import dataclass
from pathlib import Path

from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["ASSETS_MOUNT", "Asset", "AssetMount", "Request"]

ASSETS_MOUNT = "/opt/plimsoll/assets"
"""Where a sandbox sees the assets folder, read-only."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file or folder of the assets folder."""

    kind: Kind
    source: str
    """Where it comes from: a repository, a URL, a package."""
    pin: str
    """What exactly it is: commits, a digest, a version."""
    digest: str
    """`sha256:` of a file's bytes, or `tree:` of a folder's names, modes and contents."""
    size: int
    path: str
    """Relative to the assets folder."""
    mount: str | None
    """Where else a sandbox sees it: the path that a task clones to."""
    how: str
    """How a sandbox comes to use it, for a person."""


@dataclass(frozen=True, slots=True)
class Request:
    """Something that tasks fetch; once staged, with the paths of the assets that answer it."""

    kind: Kind
    what: tuple[str, ...]
    revision: str | None = None
    python: str | None = None
    """The Python that wheels are for, e.g. "3.11"."""
    assets: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests that ask for the same."""
        return (self.kind, self.what, self.revision, self.python)

    def describe(self) -> str:
        at = f" at {self.revision}" if self.revision else ""
        for_python = f" for Python {self.python}" if self.python else ""
        return f"{self.kind} {' '.join(self.what)}{at}{for_python}"


@dataclass(frozen=True, slots=True)
class AssetMount:
    """A folder of the host that a sandbox sees at `target`, read-only."""

    source: Path
    target: str
