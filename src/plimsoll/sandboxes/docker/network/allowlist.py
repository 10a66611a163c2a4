"""The hosts that an allowlist permits, by name and by address.

A name is matched as text, not by the addresses it resolves to. Addresses of the host itself and of
cloud metadata services are guarded: they need a listed address or range within the guarded range.
A listed name or `0.0.0.0/0` does not permit them.
"""

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)

__all__ = ["Address", "Allowlist", "Host", "parse_host"]

Address = IPv4Address | IPv6Address
Host = str | Address
"""A name in lower case without a trailing dot, or an address."""

_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMERIC = re.compile(r"\d+|0x[0-9a-f]*")
_MAX_NAME = 253
_GUARDED = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # connects to this host, like 127.0.0.1
        "127.0.0.0/8",
        "169.254.0.0/16",
        "100.100.100.200/32",
        "::/128",
        "::1/128",
        "fe80::/10",
        "fd00:ec2::254/128",
    )
)


def parse_host(text: str) -> Host:
    """Parse the host of a request, without brackets; raises ValueError if it is invalid.

    Numbers that some resolvers accept as addresses (`0x7f.1`, `2130706433`) are invalid.
    """
    if ":" in text:
        if "%" in text:
            raise ValueError("an address with a zone")
        return _unmapped(IPv6Address(text))
    name = text.lower().removesuffix(".")
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError("not a host name")
    if _NUMERIC.fullmatch(name.rpartition(".")[2]):
        return IPv4Address(name)
    return name


class Allowlist:
    """The names, `*.domain`s, addresses and ranges of a task's `allowed_hosts`."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._domains: set[str] = set()
        self._ranges: list[IPv4Network | IPv6Network] = []
        for host in hosts:
            self._add(host.strip().lower())

    def _add(self, host: str) -> None:
        try:
            self._ranges.append(_unmapped_range(host))
        except ValueError:
            name = host.removesuffix(".")
            if name.startswith("*."):
                self._domains.add(name[2:])
            else:
                self._names.add(name)

    def allows(self, host: Host) -> bool:
        """Whether a request may name this host. A wildcard covers the names below its domain."""
        if not isinstance(host, str):
            return self._lists(host)
        labels = host.split(".")
        above = (".".join(labels[cut:]) for cut in range(1, len(labels)))
        return host in self._names or any(domain in self._domains for domain in above)

    def may_resolve_to(self, address: Address) -> bool:
        """Whether an allowed name may resolve to this address."""
        address = _unmapped(address)
        return not _is_guarded(address) or self._lists(address)

    def _lists(self, address: Address) -> bool:
        address = _unmapped(address)
        found = (r for r in self._ranges if r.version == address.version and address in r)
        if not _is_guarded(address):
            return any(found)
        return any(_within(r, guarded) for r in found for guarded in _GUARDED)


def _unmapped(address: Address) -> Address:
    """The IPv4 address of an IPv4-mapped IPv6 address; other addresses as they are."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address


def _unmapped_range(text: str) -> IPv4Network | IPv6Network:
    listed = ip_network(text, strict=False)
    mapped = IPv6Network("::ffff:0:0/96")
    if isinstance(listed, IPv6Network) and listed.subnet_of(mapped):
        base = IPv4Address(int(listed.network_address) & 0xFFFFFFFF)
        return IPv4Network(f"{base}/{listed.prefixlen - 96}")
    return listed


def _is_guarded(address: Address) -> bool:
    return any(address.version == r.version and address in r for r in _GUARDED)


def _within(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)
