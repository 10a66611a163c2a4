"""Settings of the HTTP server: its log, and the limit on open files."""

import logging
import resource

__all__ = ["TerseLog", "raise_open_files_limit"]


class TerseLog:
    """A logger for the HTTP library that omits the arguments: an invalid request may contain a key
    anywhere."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def debug(self, msg: str, *_: object, **__: object) -> None:
        self._log.debug(msg.replace("%s", "?"))

    def exception(self, msg: str, *_: object, exc_info: object = None, **__: object) -> None:
        self._log.debug("%s %s", msg.replace("%s", "?"), type(exc_info).__name__)

    warning = error = debug


MAX_OPEN_FILES = 65_536
"""The limit on the limit: child processes inherit it, and some programs iterate over all
descriptors.
"""


def raise_open_files_limit() -> None:
    """Raise the soft limit on open files, which is often 1,024. A busy session needs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
