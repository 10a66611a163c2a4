"""Which network a phase of a trial may use.

The groups of system calls that local sandboxes deny and a task may ask for by name.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

__all__ = ["NO_NETWORK", "PUBLIC", "SYSTEM_CALLS", "NetworkMode", "NetworkPolicy", "SystemCalls"]


class NetworkMode(StrEnum):
    """The three policies of the task format."""

    PUBLIC = "public"
    NONE = "no-network"
    ALLOWLIST = "allowlist"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A mode, and for `allowlist` the names, addresses and ranges that may be reached."""

    mode: NetworkMode
    allowed_hosts: tuple[str, ...] = ()


PUBLIC = NetworkPolicy(NetworkMode.PUBLIC)
NO_NETWORK = NetworkPolicy(NetworkMode.NONE)


SystemCalls = Literal[
    "bpf", "io-uring", "keyrings", "perf", "user-namespaces", "userfaultfd", "vsock"
]
"""`[metadata] system_calls` of a task and `[local] allow_system_calls` of the config use these."""

SYSTEM_CALLS: tuple[str, ...] = get_args(SystemCalls)
