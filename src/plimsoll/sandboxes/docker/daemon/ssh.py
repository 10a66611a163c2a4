"""Connections to an engine that ssh leads to, by `docker system dial-stdio` on its host."""

import logging

import aiohttp
from aiodocker.ssh import SSHConnector

__all__ = ["Ssh"]


class _AnyNumber(aiohttp.UnixConnector):
    """Stands below aiodocker's, which does not say how many connections there may be."""

    def __init__(self, path: str) -> None:
        super().__init__(path, limit=0)


class Ssh(SSHConnector, _AnyNumber):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Any number of connections, one is kept per sandbox; each is a session of one ssh."""


# It is raised, too, and said once. That a session failed is only logged, and stays.
logging.getLogger("aiodocker.ssh").addFilter(
    lambda record: not str(record.msg).startswith("Failed to establish")
)
