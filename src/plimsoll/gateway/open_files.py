"""How many files and connections this process may have open: two for each session at work."""

import resource

__all__ = ["allow_many"]

ENOUGH = 65_536
"""More is not asked for: what this process starts inherits it, and some programs go through all."""


def allow_many() -> None:
    """Raise the limit as far as that needs no rights. Most systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
