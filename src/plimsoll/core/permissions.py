"""Permissions of a sandbox: its network policy, and groups of system calls denied by default."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

__all__ = ["NO_NETWORK", "PUBLIC", "SYSTEM_CALLS", "NetworkMode", "NetworkPolicy", "SystemCalls"]


class NetworkMode(StrEnum):
    """The network modes of the task format."""

    PUBLIC = "public"
    NONE = "no-network"
    ALLOWLIST = "allowlist"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A network mode, and for `allowlist` the reachable names, addresses and ranges."""

    mode: NetworkMode
    allowed_hosts: tuple[str, ...] = ()


PUBLIC = NetworkPolicy(NetworkMode.PUBLIC)
NO_NETWORK = NetworkPolicy(NetworkMode.NONE)


SystemCalls = Literal[
    "bpf", "io-uring", "keyrings", "perf", "user-namespaces", "userfaultfd", "vsock"
]
"""Names in `[metadata] system_calls` of a task and `[local] allow_system_calls` of the config."""

SYSTEM_CALLS: tuple[str, ...] = get_args(SystemCalls)
