"""Reserved ports of this host, for servers that a test starts later or never."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_port"]


@contextmanager
def held_port() -> Iterator[int]:
    """A port that no other process is given meanwhile. Connections to it are refused until
    whoever is told its number listens, with SO_REUSEADDR as servers do."""
    with socket.socket() as held:
        # Bound without listening: others that reuse addresses may bind it by its number alone.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]
