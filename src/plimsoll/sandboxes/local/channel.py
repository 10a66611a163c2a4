"""The asynchronous client of a sandbox's init."""

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, cast

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.local.inside import wire

__all__ = ["Channel"]

_BUSY_PAUSE = 0.002


class Channel:
    """Sends requests and matches replies to them. When init is gone, all pending requests fail."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0
        self._gone: str | None = None
        self.ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._loop.add_reader(end, self._read)

    @property
    def gone(self) -> str | None:
        """The reason why the sandbox is gone. None while it is alive."""
        return self._gone

    async def send(
        self, op: str, fds: Sequence[int] = (), **fields: object
    ) -> tuple[int, "asyncio.Future[dict[str, Any]]"]:
        """Send a request. Returns its number and the future of its reply."""
        self._last += 1
        number = self._last
        while True:
            if self._gone is not None:
                raise SandboxUnavailable(self._gone)
            try:
                wire.send_request(self._end, {"id": number, "op": op, **fields}, fds)
                break
            except BlockingIOError:
                await asyncio.sleep(_BUSY_PAUSE)
            except OSError as error:
                self.close(f"the sandbox is gone: {error.strerror}")
        reply: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._pending[number] = reply
        reply.add_done_callback(lambda _: self._pending.pop(number, None))
        return number, reply

    def _read(self) -> None:
        try:
            while True:
                data, fds = wire.receive_fds(self._end, 1, wire.REPLY_BYTES)
                if not data:
                    break
                self._receive(data, fds)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"the sandbox is gone: {error.strerror}")
        except (ValueError, TypeError, RecursionError):
            self.close("the sandbox's init sent an invalid reply")
        else:
            self.close("the sandbox's init died")

    def _receive(self, data: bytes, fds: list[int]) -> None:
        delivered = False
        try:
            reply = json.loads(data)
            if not isinstance(reply, dict):
                raise ValueError("a reply must be an object")
            fields = cast(dict[str, Any], reply)
            fields.pop("fd", None)  # only a descriptor that was received counts
            if fds:
                fields["fd"] = fds[0]
            delivered = self._deliver(fields)
        finally:
            if fds and not delivered:
                os.close(fds[0])

    def _deliver(self, reply: dict[str, Any]) -> bool:
        """Set the result of the pending request. False if nobody waits for the reply."""
        future = self._pending.get(reply["id"]) if "id" in reply else self.ready
        if future is None or future.done():
            return False
        future.set_result(reply)
        return True

    def close(self, why: str) -> None:
        """Close the socket, which ends the sandbox, and fail all pending requests."""
        if self._gone is not None:
            return
        self._gone = why
        self._loop.remove_reader(self._end)
        self._end.close()
        for future in [self.ready, *self._pending.values()]:
            if not future.done():
                future.set_exception(SandboxUnavailable(why))
                future.exception()  # marks it as retrieved: nobody may be waiting for it
