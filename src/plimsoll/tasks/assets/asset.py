"""Staged assets and the requests that they satisfy."""

from dataclasses import dataclass
from pathlib import Path

from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["ASSETS_MOUNT", "Asset", "AssetMount", "Request"]

ASSETS_MOUNT = "/opt/plimsoll/assets"
"""Read-only mount point of the assets folder in a sandbox."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file or folder of the assets folder."""

    kind: Kind
    source: str
    """Origin: a repository, a URL or a package."""
    pin: str
    """Exact version: commits, a digest or a version number."""
    digest: str
    """`sha256:` of a file's bytes, or `tree:` of a folder's names, modes and contents."""
    size: int
    path: str
    """Relative to the assets folder."""
    mount: str | None
    """Additional mount point in sandboxes: the path that a task clones to."""
    how: str
    """Explanation for users of how a sandbox uses it."""


@dataclass(frozen=True, slots=True)
class Request:
    """Content that tasks fetch; once staged, with the paths of its assets."""

    kind: Kind
    what: tuple[str, ...]
    revision: str | None = None
    python: str | None = None
    """The Python that wheels are for, e.g. "3.11"."""
    assets: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests of the same content."""
        return (self.kind, self.what, self.revision, self.python)

    def describe(self) -> str:
        at = f" at {self.revision}" if self.revision else ""
        for_python = f" for Python {self.python}" if self.python else ""
        return f"{self.kind} {' '.join(self.what)}{at}{for_python}"


@dataclass(frozen=True, slots=True)
class AssetMount:
    """A read-only mount of a host folder at `target` in a sandbox."""

    source: Path
    target: str
