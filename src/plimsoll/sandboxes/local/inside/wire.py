"""Messages between Plimsoll and a sandbox: one datagram each, JSON, with open files.

A request's JSON travels in a memfd, so it may be of any size; a reply is short and travels
in the datagram itself.
"""

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

__all__ = [
    "REPLY_BYTES",
    "encode_reply",
    "last_words",
    "receive_fds",
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
    data, fds = receive_fds(channel, _MAX_FDS)
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


def receive_fds(channel: socket.socket, most: int, size: int = 16) -> tuple[bytes, list[int]]:
    """A datagram with its files, none of which a program started from here inherits."""
    # Not socket.recv_fds: it leaves out the flag that closes them at an exec.
    room = socket.CMSG_LEN(most * 4)
    data, ancillary, _, _ = channel.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    return data, fds


def encode_reply(reply: dict[str, Any]) -> bytes:
    """A reply in a datagram's size; one that would not fit is an error, never half a reply."""
    data = json.dumps(reply).encode()
    if len(data) <= REPLY_BYTES:
        return data
    return json.dumps({"id": reply.get("id"), "error": "the reply is too long"}).encode()


def send_reply(channel: socket.socket, reply: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send, and do not care whether anybody is left to read it."""
    try:
        if fds:
            socket.send_fds(channel, [encode_reply(reply)], list(fds))
        else:
            channel.send(encode_reply(reply))
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
