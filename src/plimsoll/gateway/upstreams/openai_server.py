"""The address of an upstream, as people write it.

The body of a request to an upstream: encoded once, but for what is large and is JSON already.

How long a stream may say nothing.

One OpenAI-compatible server: vLLM, SGLang, `transformers serve`, llama.cpp, a hosted one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from plimsoll.core.errors import UsageError
from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.completions import Answer, Chunk, Request
from plimsoll.gateway.sse import EventSplitter
from plimsoll.gateway.upstreams.answers import StreamReader, read_answer
from plimsoll.gateway.upstreams.failures import (
    UpstreamFailure,
    failure_from_exception,
    failure_from_status,
    invalid_answer,
)
from plimsoll.gateway.upstreams.protocol import CallContext
from plimsoll.gateway.upstreams.request_fields import training_fields, without_strict

__all__ = [
    "CONNECTION_ERRORS",
    "LENGTH_FIELDS",
    "NEUTRAL_SAMPLING",
    "JsonBody",
    "OpenAIServer",
    "StreamTimeout",
    "SupportedFields",
    "Timeouts",
    "http_session",
    "normal_url",
]


def normal_url(given: str) -> str:
    """The base of the server's routes; `/v1` is added where there is no path."""
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable = secret = False
    else:
        if secret:
            raise UsageError("the policy's URL holds a name or a password; give the key by itself")
    if not usable:
        raise UsageError(f"{given} is no URL of a policy; it looks like http://HOST:PORT/v1")
    base = given.rstrip("/")
    return base if urlsplit(base).path else f"{base}/v1"


CHUNK_BYTES = 256 * 1024

_encode = msgspec.json.Encoder().encode


class JsonBody(aiohttp.payload.Payload):
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
            if len(part) <= CHUNK_BYTES:
                await writer.write(part)
                continue
            view = memoryview(part)
            for start in range(0, len(view), CHUNK_BYTES):
                await writer.write(view[start : start + CHUNK_BYTES])


def _parts(fields: dict[str, msgspec.Raw | str]) -> list[bytes | memoryview]:
    """A large field is not copied: it is a part of its own."""
    small: dict[str, msgspec.Raw | str] = {}
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw) and len(value) > CHUNK_BYTES:
            parts += [b"," + _encode(name) + b":", memoryview(value)]
        else:
            small[name] = value
    if not parts:
        return [_encode(small)]
    # There is always a small one: the name of the model.
    return [_encode(small)[:-1], *parts, b"}"]


class StreamTimeout:
    """Fails the reading of a stream from which nothing has come for so many seconds.

    One timer that looks when something last came. The client's own is made anew for each read,
    which costs more than the piece that was read.
    """

    __slots__ = ("_last", "_loop", "_response", "_seconds", "_timer")

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = None
        self._response = response
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def allow(self, seconds: float) -> None:
        """From now on it may last so long."""
        self._timer.cancel()
        self._seconds = seconds
        self._timer = self._loop.call_at(self._last + seconds, self._look)

    def broken(self) -> None:
        """Something came."""
        self._last = self._loop.time()

    def over(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        due = self._last + self._seconds
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        else:
            said = f"nothing came for {self._seconds:g} s"
            self._response.content.set_exception(aiohttp.SocketTimeoutError(said))


TRUE = msgspec.Raw(b"true")
FALSE = msgspec.Raw(b"false")
WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')
DONE = b"[DONE]"
DRAIN_SECONDS = 0.25
MAX_ANSWER_BYTES = 512 * 1024 * 1024
"""Of a whole answer: a server that never ends one must not fill the memory."""
MAX_ERROR_BYTES = 64 * 1024
UNSTREAMED_TYPES = ("application/json", "text/html")
"""Types of an answer that is whole by itself, and was read as a stream in vain."""
READ_BYTES = 1 << 20
"""What a connection may have ready to be read before it is paused: most answers, all of it."""
LENGTH_FIELDS = ("max_completion_tokens", "max_tokens")
"""Fields that say how long an answer may be, the newer name first."""
NEUTRAL_SAMPLING = {
    "temperature": msgspec.Raw(b"1.0"),
    "top_p": msgspec.Raw(b"1.0"),
    "top_k": msgspec.Raw(b"-1"),
    "min_p": msgspec.Raw(b"0.0"),
    "repetition_penalty": msgspec.Raw(b"1.0"),
    "presence_penalty": msgspec.Raw(b"0.0"),
    "frequency_penalty": msgspec.Raw(b"0.0"),
}
"""Has answers sampled from the model as it is, in the words of vLLM and SGLang, whatever the agent
asks for and the model's folder says: log probabilities are the model's own, and know of neither."""
CONTINUE = {"continue_final_message": TRUE, "add_generation_prompt": FALSE}
"""Has the last message gone on with, rather than answered."""
CONNECTION_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What a connection fails with."""


@dataclass(frozen=True, slots=True)
class SupportedFields:
    """Which fields a server may be sent. Some refuse what they do not know."""

    logprobs: bool = True
    token_ids: bool = True
    stream_usage: bool = True


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a server is waited for, in seconds. Where it may be paused for new weights, all but
    the first are longer by that."""

    connect: float = 10.0
    first: float = 900.0
    """For the head of a stream, and then for its first event: a queue and a long prompt are in
    it. Most servers send the head at once."""
    between: float = 900.0
    """Between two reads of a stream after that."""
    total: float = 3600.0
    """For a whole answer, or a stream from its beginning to its end."""


class _Count(msgspec.Struct):
    count: int


_count = msgspec.json.Decoder(_Count)
_tokens = msgspec.json.Decoder(int | None)


def http_session() -> aiohttp.ClientSession:
    """The session that all servers share. How many requests there are is decided elsewhere."""
    # Servers of models close idle connections after 5 s: one that is older than this might be
    # closed under a request that has just been written to it.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
    headers = {"Accept-Encoding": "identity", "User-Agent": "plimsoll"}
    return aiohttp.ClientSession(
        connector=connector, headers=headers, trust_env=False, read_bufsize=READ_BYTES
    )


class OpenAIServer:
    """A server by its URL, the one that ends in `/v1`."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        model: str,
        key: str | None = None,
        asks: SupportedFields | None = None,
        waits: Timeouts | None = None,
        context: int | None = None,
        plain: bool = False,
    ) -> None:
        """`plain`, for training, has every answer sampled as `NEUTRAL_SAMPLING` says, and drops the
        fields of agents that would change it."""
        self.url = url.rstrip("/")
        self.model = model
        self._http = http
        self._context = context
        """Tokens of a prompt and its answer, where the server tells it."""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._asks = asks or SupportedFields()
        self._plain = plain
        self._waits = waits = waits or Timeouts()
        self._whole = aiohttp.ClientTimeout(waits.total, sock_connect=waits.connect)
        self._streamed = aiohttp.ClientTimeout(
            waits.total, sock_connect=waits.connect, sock_read=waits.first
        )

    async def answer(self, request: Request, call: CallContext) -> Answer:
        try:
            async with self._post(request, call, stream=False) as response:
                if response.status != 200:
                    raise await self._failure(response)
                data = await self._read(response)
        except CONNECTION_ERRORS as error:
            raise failure_from_exception(self.url, error) from error
        return read_answer(self.url, data)

    @asynccontextmanager
    async def stream(
        self, request: Request, call: CallContext
    ) -> AsyncGenerator[AsyncIterator[list[Chunk]]]:
        try:
            response = await self._post(request, call, stream=True)
            del request
        except CONNECTION_ERRORS as error:
            raise failure_from_exception(self.url, error) from error
        try:
            if response.status != 200:
                raise await self._failure(response)
            pieces = self._pieces(response)
            try:
                yield pieces
            finally:
                await pieces.aclose()
        finally:
            # Cuts the connection unless all was read: so the server stops generating.
            response.close()

    async def count(self, request: Request) -> int:
        """Asks the server's tokenizer by the route of vLLM and SGLang. What is no count is none: a
        server may have something else at that route, and asking again changes nothing."""
        fields: dict[str, msgspec.Raw | str] = {
            "model": self.model,
            "messages": request.messages,
        }
        if request.tools is not None:
            fields["tools"] = request.tools
        url = f"{self.url.removesuffix('/v1')}/tokenize"
        post = self._http.post(
            url, data=JsonBody(fields), headers=self._headers, timeout=self._whole
        )
        try:
            async with post as response:
                said = await response.read() if response.status == 200 else b""
        except CONNECTION_ERRORS as error:
            raise failure_from_exception(self.url, error) from error
        try:
            return _count.decode(said).count
        except DECODE_ERRORS:
            message = f"the policy at {self.url} does not count tokens"
            raise UpstreamFailure("unsupported", message) from None

    async def problem(self, within: float) -> str:
        """Why the server does not serve, or "": by `/health`, and by `/models` where the former
        says nothing, as a hosted server may have no such route, or not for everybody."""
        timeout = aiohttp.ClientTimeout(within)
        try:
            for url in (f"{self.url.removesuffix('/v1')}/health", f"{self.url}/models"):
                get = self._http.get(
                    url, headers=self._headers, timeout=timeout, allow_redirects=False
                )
                async with get as response:
                    if response.status >= 500:
                        return (await self._failure(response)).message
                    if response.status == 200:
                        return ""
        except CONNECTION_ERRORS as error:
            return failure_from_exception(self.url, error).message
        return ""

    def _post(
        self, request: Request, call: CallContext, *, stream: bool
    ) -> "aiohttp.client._RequestContextManager":  # pyright: ignore[reportPrivateUsage]
        return self._http.post(
            f"{self.url}/chat/completions",
            data=JsonBody(self._fields(request, call, stream=stream)),
            headers=self._headers,
            timeout=self._streamed if stream else self._whole,
            allow_redirects=False,
        )

    def _fields(
        self, request: Request, call: CallContext, *, stream: bool
    ) -> dict[str, msgspec.Raw | str]:
        settings = training_fields(request.settings) if self._plain else request.settings
        fields: dict[str, msgspec.Raw | str] = {**settings}
        for limit in LENGTH_FIELDS:
            if limit in fields and self._is_no_limit(settings[limit]):
                del fields[limit]
        if self._plain:
            fields |= NEUTRAL_SAMPLING
        if request.continues:
            fields |= CONTINUE
        fields["model"] = self.model
        fields["messages"] = request.messages
        if request.tools is not None:
            fields["tools"] = without_strict(request.tools) if self._plain else request.tools
        if call.seed is not None:
            fields.setdefault("seed", msgspec.Raw(str(call.seed).encode()))
        fields["stream"] = TRUE if stream else FALSE
        if call.ids and self._asks.logprobs:
            fields["logprobs"] = TRUE
        if call.ids and self._asks.token_ids:
            fields["return_token_ids"] = TRUE
        fields.pop("stream_options", None)
        if stream and self._asks.stream_usage:
            fields["stream_options"] = WITH_USAGE
        return fields

    def _is_no_limit(self, asked: msgspec.Raw) -> bool:
        """Whether an answer may be as long as half of the context, or longer.

        Agents made for large models ask for that much as a matter of course. Servers refuse a
        request whose prompt and answer might not fit; without a limit they give what is left.
        """
        if self._context is None:
            return False
        try:
            tokens = _tokens.decode(asked)
        except msgspec.DecodeError:
            return False  # the server says what is wrong with it
        return tokens is not None and tokens * 2 >= self._context

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        while data := await response.content.readany():
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise invalid_answer(self.url, f"it is longer than {MAX_ANSWER_BYTES} bytes")
            parts.append(data)
        return b"".join(parts)

    async def _failure(self, response: aiohttp.ClientResponse) -> UpstreamFailure:
        try:
            body = await response.content.read(MAX_ERROR_BYTES)
        except CONNECTION_ERRORS:
            body = b""  # what the status says holds all the same
        return failure_from_status(
            self.url, response.status, body, response.headers.get("Retry-After")
        )

    async def _pieces(self, response: aiohttp.ClientResponse) -> AsyncGenerator[list[Chunk]]:
        splitter, reader = EventSplitter(), StreamReader(self.url)
        silence = StreamTimeout(response, self._waits.first)
        content = response.content
        begun = done = False
        try:
            while data := await content.readany():
                silence.broken()
                events = splitter.feed(data)
                if events and not begun:
                    begun = True
                    silence.allow(self._waits.between)
                done = bool(events) and events[-1] == DONE
                if done:
                    events = [event for event in events if event != DONE]
                if events:
                    yield [reader.read(event) for event in events]
                if done:
                    await _drain(response)
                    break
        except ValueError as error:
            raise invalid_answer(self.url, str(error)) from error
        except CONNECTION_ERRORS as error:
            raise failure_from_exception(self.url, error) from error
        finally:
            silence.over()
        if not reader.finished:
            raise self._unfinished(response, done=done)

    def _unfinished(self, response: aiohttp.ClientResponse, *, done: bool) -> UpstreamFailure:
        if done:
            return invalid_answer(self.url, "its stream ends without a finish_reason")
        if response.content_type in UNSTREAMED_TYPES:
            return invalid_answer(
                self.url, f"a stream was asked for, and {response.content_type} came"
            )
        return failure_from_exception(self.url, aiohttp.ServerDisconnectedError())


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Reads the end of the body after the last event, so that the connection can be used again."""
    if not response.content.at_eof():
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await response.content.read()
