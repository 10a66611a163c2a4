"""A socket that listens in a sandbox's network, made by a child of init and handed out."""

import os
import socket

from plimsoll.sandboxes.local.inside import syscalls, wire

__all__ = ["ADDRESS", "listen"]

ADDRESS = "127.0.0.1"
_BACKLOG = 128


def listen(port: int, end: int, netns: int | None) -> None:
    """Listen on loopback, in a network namespace where one is given, and hand the socket over.

    The namespace is entered by a process that ends: init could not always go back.
    """
    with socket.socket(fileno=os.dup(end)) as answer:
        try:
            if netns is not None:
                syscalls.setns(netns, syscalls.CLONE_NEWNET)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                # A port is free again as soon as nobody listens on it.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind((ADDRESS, port))
                made.listen(_BACKLOG)
                wire.send_reply(answer, {"port": made.getsockname()[1]}, [made.fileno()])
        except (OSError, OverflowError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            wire.send_reply(answer, {"error": why})
