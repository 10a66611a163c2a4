"""Reads the output of a program from a pseudo-terminal."""

import errno
import os

__all__ = ["read_all"]


def read_all(terminal: int) -> str:
    """Read a terminal until its other side is closed."""
    data = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError as error:
            assert error.errno == errno.EIO
            return data.decode()
        if not chunk:
            return data.decode()
        data += chunk
