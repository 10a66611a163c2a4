"""The body of a request to an upstream: encoded once, kept as bytes, sent in bounded pieces."""

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

__all__ = ["Body"]

PIECE = 256 * 1024

_encoder = msgspec.json.Encoder()


class Body(aiohttp.payload.Payload):
    """JSON of any size. A large one is written piece by piece, so that others get their turn."""

    _autoclose = True

    def __init__(self, fields: dict[str, msgspec.Raw | str]) -> None:
        self._bytes = _encoder.encode(fields)
        super().__init__(self._bytes, content_type="application/json")
        self._size = len(self._bytes)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._bytes.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        if len(self._bytes) <= PIECE:
            await writer.write(self._bytes)
            return
        view = memoryview(self._bytes)
        for start in range(0, len(view), PIECE):
            await writer.write(view[start : start + PIECE])
