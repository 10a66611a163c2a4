"""The resource limits of every command, whatever earlier commands did."""

import resource

__all__ = ["RLimits", "apply", "effective_limits"]

RLimits = dict[int, tuple[int, int]]
"""Soft and hard limit by resource."""

_NONE = resource.RLIM_INFINITY
_MB = 1 << 20

_TABLE: RLimits = {
    resource.RLIMIT_AS: (_NONE, _NONE),
    resource.RLIMIT_CORE: (0, _NONE),
    resource.RLIMIT_CPU: (_NONE, _NONE),
    resource.RLIMIT_DATA: (_NONE, _NONE),
    resource.RLIMIT_FSIZE: (_NONE, _NONE),
    resource.RLIMIT_MEMLOCK: (8 * _MB, 8 * _MB),
    resource.RLIMIT_MSGQUEUE: (819_200, 819_200),
    resource.RLIMIT_NICE: (0, 0),
    resource.RLIMIT_NOFILE: (65_536, 524_288),
    resource.RLIMIT_NPROC: (_NONE, _NONE),
    resource.RLIMIT_RSS: (_NONE, _NONE),
    resource.RLIMIT_RTPRIO: (0, 0),
    resource.RLIMIT_SIGPENDING: (_NONE, _NONE),
    resource.RLIMIT_STACK: (8 * _MB, _NONE),
}


def effective_limits() -> RLimits:
    """The table, capped by the hard limits of this process. Init calls it before any command."""
    found: RLimits = {}
    for number, (soft, hard) in _TABLE.items():
        maximum = _lower(hard, resource.getrlimit(number)[1])
        found[number] = (_lower(soft, maximum), maximum)
    return found


def apply(limits: RLimits) -> None:
    """Apply limits to this process."""
    for number, pair in limits.items():
        resource.setrlimit(number, pair)


def _lower(one: int, other: int) -> int:
    if _NONE in (one, other):
        return other if one == _NONE else one
    return min(one, other)
