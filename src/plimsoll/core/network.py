"""Which network a phase of a trial may use."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["NO_NETWORK", "PUBLIC", "NetworkMode", "NetworkPolicy"]


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
