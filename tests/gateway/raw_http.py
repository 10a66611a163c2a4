"""A raw HTTP client that can stop at any byte."""

import asyncio
import json
from typing import Any

from gateway_parts import ServedSession

__all__ = ["Raw", "connected"]


class Raw:
    """One connection to the gateway."""

    def __init__(
        self, served: ServedSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self._writer = writer
        self._served = served

    def head(self, path: str, length: int | None, *more: str) -> bytes:
        root = self._served.access.root.partition("//")[2].partition("/")[2]
        lines = [
            f"POST /{root}{path} HTTP/1.1",
            "Host: gateway",
            f"Authorization: Bearer {self._served.access.key}",
            "Content-Type: application/json",
            *([f"Content-Length: {length}"] if length is not None else []),
            *more,
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def post(self, path: str, fields: dict[str, Any]) -> None:
        body = json.dumps(fields).encode()
        self.send(self.head(path, len(body)) + body)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def pause(self) -> None:
        """Stop reading from the socket."""
        self.reader._transport.pause_reading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        self.reader._transport.resume_reading()  # type: ignore[attr-defined]

    async def until(self, word: bytes) -> bytes:
        async with asyncio.timeout(30):
            seen = b""
            while word not in seen:
                data = await self.reader.read(65536)
                assert data, seen
                seen += data
            return seen

    async def all(self) -> bytes:
        async with asyncio.timeout(30):
            return await self.reader.read()

    def cut(self) -> None:
        self._writer.transport.abort()


async def connected(served: ServedSession) -> Raw:
    raw = Raw(served, *await asyncio.open_connection("127.0.0.1", served.gateway.port))
    served.stack.callback(raw.cut)
    return raw
