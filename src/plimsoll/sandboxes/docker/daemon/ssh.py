"""Connections to a daemon over ssh, by `docker system dial-stdio` on its host."""

import logging

import aiohttp
from aiodocker.ssh import SSHConnector

__all__ = ["SshConnector"]


class _UnlimitedConnector(aiohttp.UnixConnector):
    """A base for aiodocker's connector, which otherwise has aiohttp's default limit."""

    def __init__(self, path: str) -> None:
        super().__init__(path, limit=0)


class SshConnector(SSHConnector, _UnlimitedConnector):  # pyright: ignore[reportIncompatibleMethodOverride]
    """An ssh connector without a connection limit; each connection is a session of one ssh."""


# This failure is also raised, so its log line is dropped. Failed sessions are only logged.
logging.getLogger("aiodocker.ssh").addFilter(
    lambda record: not str(record.msg).startswith("Failed to establish")
)
