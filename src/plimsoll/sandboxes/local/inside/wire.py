"""Messages between the host and a sandbox: datagrams with JSON and open files.

The JSON of a request is in a memfd, so it can have any size. A reply is short, and is in the
datagram itself.
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
    "ignore_signal",
    "receive_fds",
    "receive_request",
    "report_crash",
    "send_reply",
    "send_request",
]

_MAX_FDS = 8
REPLY_BYTES = 64 * 1024


def send_request(channel: socket.socket, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send without blocking. The caller still owns its descriptors."""
    memory = os.memfd_create("plimsoll-request", os.MFD_CLOEXEC)
    try:
        payload = memoryview(json.dumps(request).encode())
        while payload:
            payload = payload[os.write(memory, payload) :]
        socket.send_fds(channel, [b"R"], [memory, *fds])
    finally:
        os.close(memory)


def receive_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request with its descriptors. None if the other side is gone."""
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


def receive_fds(channel: socket.socket, max_fds: int, size: int = 16) -> tuple[bytes, list[int]]:
    """Receive a datagram with its descriptors, which are closed on exec."""
    # socket.recv_fds does not set the close-on-exec flag.
    room = socket.CMSG_LEN(max_fds * 4)
    data, ancillary, _, _ = channel.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
    return data, fds


def encode_reply(reply: dict[str, Any]) -> bytes:
    """Encode a reply for a datagram. A reply that does not fit becomes an error."""
    data = json.dumps(reply).encode()
    if len(data) <= REPLY_BYTES:
        return data
    return json.dumps({"id": reply.get("id"), "error": "the reply is too long"}).encode()


def send_reply(channel: socket.socket, reply: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a reply. A missing receiver is no error."""
    try:
        if fds:
            socket.send_fds(channel, [encode_reply(reply)], list(fds))
        else:
            channel.send(encode_reply(reply))
    except OSError:
        return


def report_crash(process: str, error: BaseException) -> None:
    """Report an unexpected exception on stderr, where the host finds it if a sandbox dies.

    Without a traceback: printing one imports modules and reads files, which are not trusted in a
    sandbox's root.
    """
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f" ({at.tb_frame.f_code.co_name}, line {at.tb_lineno})" if at else ""
    os.write(2, f"{process}: {type(error).__name__}: {error}{where}\n".encode("utf-8", "replace"))


def ignore_signal(number: int, frame: object) -> None:
    """A signal handler that does nothing: the wakeup descriptor interrupts the poll."""
    del number, frame
