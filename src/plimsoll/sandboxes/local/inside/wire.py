"""Messages between Plimsoll and a sandbox: one datagram each, JSON, with open files.

A request's JSON travels in a memfd, so it may be of any size; a reply is short and travels
in the datagram itself.
"""

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

__all__ = [
    "REPLY_BYTES",
    "last_words",
    "receive_request",
    "send_reply",
    "send_request",
    "wake_only",
]

_MAX_FDS = 8
REPLY_BYTES = 64 * 1024


def send_request(channel: socket.socket, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send without blocking. The caller keeps (and closes) its own descriptors."""
    memory = os.memfd_create("plimsoll-request", os.MFD_CLOEXEC)
    try:
        payload = memoryview(json.dumps(request).encode())
        while payload:
            payload = payload[os.write(memory, payload) :]
        socket.send_fds(channel, [b"R"], [memory, *fds])
    finally:
        os.close(memory)


def receive_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request with its files, or None when the other side is gone."""
    data, fds, _, _ = socket.recv_fds(channel, 16, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    memory, *rest = fds
    try:
        size = os.fstat(memory).st_size
        payload = bytearray()
        while len(payload) < size:
            payload += os.pread(memory, size - len(payload), len(payload))
    finally:
        os.close(memory)
    return json.loads(payload), rest


def send_reply(channel: socket.socket, reply: dict[str, Any]) -> None:
    """Send, and do not care whether anybody is left to read it."""
    try:
        channel.send(json.dumps(reply).encode()[:REPLY_BYTES])
    except OSError:
        return


def last_words(who: str, error: BaseException) -> None:
    """Leave a note on stderr, where Plimsoll finds it when a sandbox died of a fault of ours.

    Not a traceback: printing one imports modules and reads files, which in a sandbox's root
    could be anybody's.
    """
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f" ({at.tb_frame.f_code.co_name}, line {at.tb_lineno})" if at else ""
    os.write(2, f"{who}: {type(error).__name__}: {error}{where}\n".encode("utf-8", "replace"))


def wake_only(number: int, frame: object) -> None:
    """A signal handler that does nothing: the signal wakes the poll by its descriptor."""
    del number, frame
