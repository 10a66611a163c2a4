"""Whether a fetch gets through under a network policy."""

import ipaddress
from fnmatch import fnmatchcase

from plimsoll.core.network import NetworkMode, NetworkPolicy
from plimsoll.tasks.lint.fetch import Fetch, Kind
from plimsoll.tasks.lint.options import host_of

__all__ = ["gets_through"]


def gets_through(fetch: Fetch, policy: NetworkPolicy) -> bool:
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
