"""The body of a request to an upstream: encoded once, but for what is large and is JSON already."""

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

__all__ = ["Body"]

PIECE = 256 * 1024

_encode = msgspec.json.Encoder().encode


class Body(aiohttp.payload.Payload):
    """JSON of any size. A large one is written piece by piece, so that others get their turn."""

    _autoclose = True

    def __init__(self, fields: dict[str, msgspec.Raw | str]) -> None:
        self._parts = _parts(fields)
        super().__init__(None, content_type="application/json")
        self._size = sum(map(len, self._parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._parts).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for part in self._parts:
            if len(part) <= PIECE:
                await writer.write(part)
                continue
            view = memoryview(part)
            for start in range(0, len(view), PIECE):
                await writer.write(view[start : start + PIECE])


def _parts(fields: dict[str, msgspec.Raw | str]) -> list[bytes | memoryview]:
    """A large field is not copied: it is a part of its own."""
    small: dict[str, msgspec.Raw | str] = {}
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw) and len(value) > PIECE:
            parts += [b"," + _encode(name) + b":", memoryview(value)]
        else:
            small[name] = value
    if not parts:
        return [_encode(small)]
    # There is always a small one: the name of the model.
    return [_encode(small)[:-1], *parts, b"}"]
