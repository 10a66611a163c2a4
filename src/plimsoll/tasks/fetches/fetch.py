"""Something that a task would fetch from a network.

Whether a fetch gets through under a network policy.
"""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from plimsoll.core.permissions import NetworkMode, NetworkPolicy
from plimsoll.tasks.shell.options import host_of

__all__ = ["Fetch", "Kind", "Phase", "is_reachable"]


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


def is_reachable(fetch: Fetch, policy: NetworkPolicy) -> bool:
    """Whether the policy lets a fetch reach where it goes; what cannot be told gets through.

    Under an allowlist that is so for packages: their index is a matter of configuration.
    """
    if policy.mode is NetworkMode.PUBLIC:
        return True
    if policy.mode is NetworkMode.NONE:
        return False
    if fetch.kind not in (Kind.GIT, Kind.URL, Kind.UV_TOOL):
        return True
    hosts = [host for url in fetch.what if (host := host_of(url)) is not None]
    return all(_allowed(host, policy) for host in hosts)


def _allowed(host: str, policy: NetworkPolicy) -> bool:
    return any(_matches(host.lower(), allowed.lower()) for allowed in policy.allowed_hosts)


def _matches(host: str, allowed: str) -> bool:
    if fnmatchcase(host, allowed):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(allowed, strict=False)
    except ValueError:
        return False
