"""An OpenAI-compatible server: vLLM, SGLang, `transformers serve`, llama.cpp, or a hosted one."""

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
from plimsoll.gateway.upstreams.capabilities import SupportedFields
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
    "Timeouts",
    "http_session",
    "normal_url",
]


def normal_url(url: str) -> str:
    """The base URL of the server's routes; adds `/v1` if there is no path."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable = secret = False
    else:
        if secret:
            raise UsageError(
                "the policy's URL contains a user or a password; set the key in PLIMSOLL_POLICY_KEY"
            )
    if not usable:
        raise UsageError(f"{url} is not a URL of a policy; expected http://HOST:PORT/v1")
    base = url.rstrip("/")
    return base if urlsplit(base).path else f"{base}/v1"


CHUNK_BYTES = 256 * 1024

_encode = msgspec.json.Encoder().encode


class JsonBody(aiohttp.payload.Payload):
    """A JSON body of any size. Large bodies are written in chunks, so that the event loop stays
    free."""

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
    """The encoded parts. A large raw field becomes its own part, without a copy."""
    small: dict[str, msgspec.Raw | str] = {}
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if isinstance(value, msgspec.Raw) and len(value) > CHUNK_BYTES:
            parts += [b"," + _encode(name) + b":", memoryview(value)]
        else:
            small[name] = value
    if not parts:
        return [_encode(small)]
    # There is always a small field: the model's name.
    return [_encode(small)[:-1], *parts, b"}"]


class StreamTimeout:
    """Fails the reading of a stream that has been silent for too long.

    It is one timer that checks the time of the last read. aiohttp's own timeout is rescheduled at
    every read, which costs more than the read itself.
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
        self._timer = self._loop.call_later(seconds, self._check)

    def set_limit(self, seconds: float) -> None:
        """Change the timeout."""
        self._timer.cancel()
        self._seconds = seconds
        self._timer = self._loop.call_at(self._last + seconds, self._check)

    def touch(self) -> None:
        """Note that data arrived."""
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        due = self._last + self._seconds
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._check)
        else:
            message = f"no data for {self._seconds:g} s"
            self._response.content.set_exception(aiohttp.SocketTimeoutError(message))


TRUE = msgspec.Raw(b"true")
FALSE = msgspec.Raw(b"false")
WITH_USAGE = msgspec.Raw(b'{"include_usage":true}')
DONE = b"[DONE]"
DRAIN_SECONDS = 0.25
MAX_ANSWER_BYTES = 512 * 1024 * 1024
"""The limit on a whole answer: an endless one must not fill the memory."""
MAX_ERROR_BYTES = 64 * 1024
UNSTREAMED_TYPES = ("application/json", "text/html")
"""Content types of an answer that is not a stream."""
READ_BYTES = 1 << 20
"""The read buffer of a connection: most answers fit completely."""
LENGTH_FIELDS = ("max_completion_tokens", "max_tokens")
"""The fields that limit the length of an answer; the newer name first."""
NEUTRAL_SAMPLING = {
    "temperature": msgspec.Raw(b"1.0"),
    "top_p": msgspec.Raw(b"1.0"),
    "top_k": msgspec.Raw(b"-1"),
    "min_p": msgspec.Raw(b"0.0"),
    "repetition_penalty": msgspec.Raw(b"1.0"),
    "presence_penalty": msgspec.Raw(b"0.0"),
    "frequency_penalty": msgspec.Raw(b"0.0"),
}
"""Sampling parameters of vLLM and SGLang for the unmodified distribution of the model. They
override the agent and the model's `generation_config.json`, because the reported log probabilities
are the model's own.
"""
CONTINUE = {"continue_final_message": TRUE, "add_generation_prompt": FALSE}
"""Continue the last message instead of answering it."""
CONNECTION_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""Errors of a connection."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a server in seconds. All but `connect` go on during a pause of the server for new
    weights."""

    connect: float = 10.0
    first: float = 900.0
    """For the headers of a stream, and then for its first event, which includes queueing and a long
    prompt. Most servers send the headers at once."""
    between: float = 900.0
    """Between two later reads of a stream."""
    total: float = 3600.0
    """For a whole answer, or a whole stream."""


class _Count(msgspec.Struct):
    count: int


_count = msgspec.json.Decoder(_Count)
_tokens = msgspec.json.Decoder(int | None)


def http_session() -> aiohttp.ClientSession:
    """The HTTP client that all servers share. The number of requests is limited elsewhere."""
    # Inference servers close idle connections after 5 s. A connection older than this limit might
    # be closed just after a request was written to it.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
    headers = {"Accept-Encoding": "identity", "User-Agent": "plimsoll"}
    return aiohttp.ClientSession(
        connector=connector, headers=headers, trust_env=False, read_bufsize=READ_BYTES
    )


class OpenAIServer:
    """A server by its base URL, which ends in `/v1`."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        model: str,
        key: str | None = None,
        supported: SupportedFields | None = None,
        timeouts: Timeouts | None = None,
        context: int | None = None,
        plain: bool = False,
    ) -> None:
        """`plain`, for training, applies `NEUTRAL_SAMPLING` and drops the agent's fields that would
        change the distribution."""
        self.url = url.rstrip("/")
        self.model = model
        self._http = http
        self._context = context
        """The context length, if the server reports it."""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._supported = supported or SupportedFields()
        self._plain = plain
        self._timeouts = timeouts = timeouts or Timeouts()
        self._answer_limit = aiohttp.ClientTimeout(timeouts.total, sock_connect=timeouts.connect)
        self._stream_limit = aiohttp.ClientTimeout(
            timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.first
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
            # Closes the connection unless everything was read, so that the server stops generating.
            response.close()

    async def count(self, request: Request) -> int:
        """Count tokens by the `/tokenize` route of vLLM and SGLang. Any other answer means that
        counting is not supported: other servers may have another route there, and a retry would not
        help."""
        fields: dict[str, msgspec.Raw | str] = {
            "model": self.model,
            "messages": request.messages,
        }
        if request.tools is not None:
            fields["tools"] = request.tools
        url = f"{self.url.removesuffix('/v1')}/tokenize"
        post = self._http.post(
            url, data=JsonBody(fields), headers=self._headers, timeout=self._answer_limit
        )
        try:
            async with post as response:
                body = await response.read() if response.status == 200 else b""
        except CONNECTION_ERRORS as error:
            raise failure_from_exception(self.url, error) from error
        try:
            return _count.decode(body).count
        except DECODE_ERRORS:
            message = f"the policy at {self.url} cannot count tokens"
            raise UpstreamFailure("unsupported", message) from None

    async def problem(self, seconds: float) -> str:
        """The reason why the server does not serve, or "". Asks `/health`, and then `/models`,
        because hosted servers may lack the former or restrict it."""
        timeout = aiohttp.ClientTimeout(seconds)
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
            timeout=self._stream_limit if stream else self._answer_limit,
            allow_redirects=False,
        )

    def _fields(
        self, request: Request, call: CallContext, *, stream: bool
    ) -> dict[str, msgspec.Raw | str]:
        settings = training_fields(request.settings) if self._plain else request.settings
        fields: dict[str, msgspec.Raw | str] = {**settings}
        for limit in LENGTH_FIELDS:
            if limit in fields and self._is_half_of_context(settings[limit]):
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
        if self._supported.logprobs:
            fields["logprobs"] = TRUE
        if self._supported.token_ids:
            fields["return_token_ids"] = TRUE
        fields.pop("stream_options", None)
        if stream and self._supported.stream_usage:
            fields["stream_options"] = WITH_USAGE
        return fields

    def _is_half_of_context(self, limit: msgspec.Raw) -> bool:
        """Whether a length limit is half of the context or more.

        Agents for large models request that much by default. Servers reject a request whose prompt
        and answer might not fit; without a limit they generate up to the context length.
        """
        if self._context is None:
            return False
        try:
            tokens = _tokens.decode(limit)
        except msgspec.DecodeError:
            return False  # the server reports the error
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
            body = b""  # the status is enough
        return failure_from_status(
            self.url, response.status, body, response.headers.get("Retry-After")
        )

    async def _pieces(self, response: aiohttp.ClientResponse) -> AsyncGenerator[list[Chunk]]:
        splitter, reader = EventSplitter(), StreamReader(self.url)
        stream_timeout = StreamTimeout(response, self._timeouts.first)
        content = response.content
        started = done = False
        try:
            while data := await content.readany():
                stream_timeout.touch()
                events = splitter.feed(data)
                if events and not started:
                    started = True
                    stream_timeout.set_limit(self._timeouts.between)
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
            stream_timeout.stop()
        if not reader.finished:
            raise self._unfinished(response, done=done)

    def _unfinished(self, response: aiohttp.ClientResponse, *, done: bool) -> UpstreamFailure:
        if done:
            return invalid_answer(self.url, "its stream ends without a finish_reason")
        if response.content_type in UNSTREAMED_TYPES:
            return invalid_answer(
                self.url, f"a stream was requested, but {response.content_type} came"
            )
        return failure_from_exception(self.url, aiohttp.ServerDisconnectedError())


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the end of the body after the last event, so that the connection can be reused."""
    if not response.content.at_eof():
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await response.content.read()
