"""Fetch: a network access of a task, and whether a network policy allows it."""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from plimsoll.core.permissions import NetworkMode, NetworkPolicy
from plimsoll.tasks.shell.options import host_of

__all__ = ["Fetch", "Kind", "Phase", "is_reachable"]


class Phase(StrEnum):
    """Phase of a trial in which a fetch happens; each phase has its own network policy."""

    BUILD = "build"
    SET_UP = "set-up"
    AGENT = "agent"
    TEST = "test"


class Kind(StrEnum):
    """Kind of fetch; it determines how the content is staged."""

    GIT = "git"
    URL = "url"
    WHEELS = "wheels"
    UV_TOOL = "uv-tool"
    """The uv program itself."""
    NPM = "npm"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Fetch:
    """A command, or a call in a Python grader, that needs the network."""

    tool: str
    """The program or library: git, curl, wget, pip, uvx, npm, apt-get, …"""
    kind: Kind
    what: tuple[str, ...]
    """The repository, the URLs, the requirements or the packages."""
    revision: str | None
    """The commit, tag or branch of a repository, if the command shows it."""
    target: str | None
    """The destination of a clone or download; absolute if it can be determined."""
    phase: Phase
    file: str
    """Relative to the task folder, with `/`."""
    line: int
    guarded: bool
    """A failure is caught by `||`, or by an `if` or loop that has it as its condition."""


def is_reachable(fetch: Fetch, policy: NetworkPolicy) -> bool:
    """Whether the policy allows a fetch; True if that cannot be determined.

    With an allowlist this is the case for packages: their index depends on configuration.
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
