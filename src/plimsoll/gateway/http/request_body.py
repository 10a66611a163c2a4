"""Request bodies: read in pieces, decompressed, and limited in size."""

import zlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import zstandard
from aiohttp import hdrs, web

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.parser_threads import LARGE_BODY_BYTES, run_in_thread
from plimsoll.gateway.sessions.handlers import Handlers

__all__ = ["request_body"]

READ_SECONDS = 60.0
"""The time for a body to arrive after its headers."""


@asynccontextmanager
async def request_body(
    http: web.BaseRequest, limit: int, handlers: Handlers
) -> AsyncGenerator[bytes]:
    """The decompressed body, for as long as the caller parses it.

    Until then, a body that is large or compressed holds its share of the body budget and the
    session's slot in the parser threads. Raises `Refusal` for a body that is too large, too slow,
    or compressed in an unsupported way.
    """
    length = http.content_length
    if length is not None and length > limit:
        raise _too_large(limit)
    async with AsyncExitStack() as stack:
        if http.content.is_eof():
            data = http.content.read_nowait()  # the common case: the whole body has arrived already
        else:
            data = await _receive(http, limit, handlers, stack)
        if len(data) > limit:
            raise _too_large(limit)
        encoding = http.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
        if encoding == "identity" and len(data) <= LARGE_BODY_BYTES:
            yield data
            return
        async with handlers.time_limit(READ_SECONDS, _budget_timeout()):
            await stack.enter_async_context(handlers.parsing)
        if encoding != "identity":
            data = await run_in_thread(_decompress, data, encoding, limit)
        yield data


async def _receive(
    http: web.BaseRequest, limit: int, handlers: Handlers, stack: AsyncExitStack
) -> bytes:
    """The body as it arrives. Its share of the budget is returned when the stack closes."""
    async with handlers.time_limit(READ_SECONDS, _budget_timeout()):
        size = http.content_length
        await stack.enter_async_context(
            handlers.body_budget.reserve(limit if size is None else size)
        )
    return await _read(http, limit, handlers)


def _budget_timeout() -> Refusal:
    return Refusal("too_many", "too many unfinished request bodies in this session")


async def _read(http: web.BaseRequest, limit: int, handlers: Handlers) -> bytes:
    pieces: list[bytes] = []
    remaining = limit
    if http.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        # The client waits for this before it sends its body.
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    late = Refusal("bad_request", "the body of the request did not arrive in time")
    async with handlers.time_limit(READ_SECONDS, late):
        while piece := await http.content.readany():
            remaining -= len(piece)
            if remaining < 0:
                raise _too_large(limit)
            pieces.append(piece)
    return b"".join(pieces)


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    try:
        if encoding in ("gzip", "x-gzip", "deflate"):
            return _inflate(body, limit)
        if encoding == "zstd":
            return _decompress_zstd(body, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise Refusal("bad_request", f"the body is not valid {encoding}: {error}") from None
    raise Refusal("unsupported", f"the encoding {encoding} is not supported; use gzip or zstd")


def _inflate(body: bytes, limit: int) -> bytes:
    """Decompress gzip, zlib or raw deflate, by the first bytes: some clients send raw deflate."""
    is_raw = body[:1] not in (b"\x1f", b"\x78")
    stream = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
    out = stream.decompress(body, limit + 1)
    if len(out) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise zlib.error("unexpected end of data")
    return out


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    window = max(limit, 1 << 20).bit_length()
    with zstandard.ZstdDecompressor(max_window_size=1 << min(window, 30)).stream_reader(
        body, read_across_frames=True
    ) as reader:
        pieces: list[bytes] = []
        remaining = limit
        while piece := reader.read(1 << 18):
            remaining -= len(piece)
            if remaining < 0:
                raise _too_large(limit)
            pieces.append(piece)
    return b"".join(pieces)


def _too_large(limit: int) -> Refusal:
    return Refusal("too_large", f"the body is larger than {limit} bytes, the session's limit")
