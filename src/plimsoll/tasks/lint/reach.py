"""Whether a fetch gets through under a network policy."""

import ipaddress
from fnmatch import fnmatchcase

from plimsoll.core.network import NetworkMode, NetworkPolicy
from plimsoll.tasks.lint.fetch import Fetch, Kind
from plimsoll.tasks.lint.options import host_of

__all__ = ["gets_through"]

HOSTS = {
    "apk": ("dl-cdn.alpinelinux.org",),
    "apt-get": ("system.example.org", "archive.ubuntu.com"),
    "cargo": ("crates.io", "static.crates.io", "index.crates.io"),
    "go": ("proxy.golang.org",),
    "huggingface": ("huggingface.co",),
    "npm": ("packages.example.org",),
    "npx": ("packages.example.org",),
    "pip": ("index.example.org",),
    "pipx": ("index.example.org",),
    "pnpm": ("packages.example.org",),
    "uv": ("index.example.org",),
    "uvx": ("index.example.org",),
    "yarn": ("packages.example.org", "packages.example.org"),
}
"""Where tools fetch from when no URL is given. One of them suffices."""


def gets_through(fetch: Fetch, policy: NetworkPolicy) -> bool:
    """Whether the policy lets a fetch reach where it goes; what cannot be told gets through."""
    if policy.mode is NetworkMode.PUBLIC:
        return True
    if policy.mode is NetworkMode.NONE:
        return False
    if fetch.kind in (Kind.GIT, Kind.URL, Kind.UV_TOOL):
        hosts = [host for url in fetch.what if (host := host_of(url)) is not None]
        return all(_allowed(host, policy) for host in hosts)
    known = HOSTS.get(fetch.tool)
    return known is None or any(_allowed(host, policy) for host in known)


def _allowed(host: str, policy: NetworkPolicy) -> bool:
    return any(_matches(host.lower(), allowed.lower()) for allowed in policy.allowed_hosts)


def _matches(host: str, allowed: str) -> bool:
    if fnmatchcase(host, allowed):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(allowed, strict=False)
    except ValueError:
        return False
