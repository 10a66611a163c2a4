"""Reserved ports of this host, for servers that a test starts later or never."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_port"]


@contextmanager
def held_port() -> Iterator[int]:
    """A reserved port. It refuses connections until a server of the test listens on it.

    The server must set SO_REUSEADDR, as servers do.
    """
    with socket.socket() as held:
        # Bound without listening: servers that reuse addresses can bind it, by its number only.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]
