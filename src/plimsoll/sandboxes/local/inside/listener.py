"""Sockets that listen in a sandbox's network, made by a child of init and sent to the host."""

import os
import socket

from plimsoll.sandboxes.local.inside import syscalls, wire

__all__ = ["ADDRESS", "listen"]

ADDRESS = "127.0.0.1"
_BACKLOG = 128


def listen(port: int, end: int, netns: int | None) -> None:
    """Listen on loopback, in a network namespace if given, and send the socket to the host.

    A short-lived process enters the namespace, since init could not always return from it.
    """
    with socket.socket(fileno=os.dup(end)) as reply:
        try:
            if netns is not None:
                syscalls.setns(netns, syscalls.CLONE_NEWNET)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                # The port can be reused as soon as nobody listens on it.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind((ADDRESS, port))
                made.listen(_BACKLOG)
                wire.send_reply(reply, {"port": made.getsockname()[1]}, [made.fileno()])
        except (OSError, OverflowError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            wire.send_reply(reply, {"error": why})
