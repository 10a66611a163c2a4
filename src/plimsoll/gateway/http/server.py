"""What the HTTP library may log: that something went wrong, never what was sent.

How many files and connections this process may have open: two for each session at work.
"""

import logging
import resource

__all__ = ["TerseLog", "raise_open_files_limit"]


class TerseLog:
    """Stands in for a logger. A request that is not HTTP may hold a key in any place."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def debug(self, msg: str, *_: object, **__: object) -> None:
        self._log.debug(msg.replace("%s", "?"))

    def exception(self, msg: str, *_: object, exc_info: object = None, **__: object) -> None:
        self._log.debug("%s %s", msg.replace("%s", "?"), type(exc_info).__name__)

    warning = error = debug


MAX_OPEN_FILES = 65_536
"""More is not asked for: what this process starts inherits it, and some programs go through all."""


def raise_open_files_limit() -> None:
    """Raise the limit as far as that needs no rights. Most systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
