"""What the HTTP library may log: that something went wrong, never what was sent."""

import logging

__all__ = ["TerseLog"]


class TerseLog:
    """Stands in for a logger. A request that is not HTTP may hold a key in any place."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def debug(self, msg: str, *_: object, **__: object) -> None:
        self._log.debug(msg.replace("%s", "?"))

    def exception(self, msg: str, *_: object, exc_info: object = None, **__: object) -> None:
        self._log.debug("%s %s", msg.replace("%s", "?"), type(exc_info).__name__)

    warning = error = debug
