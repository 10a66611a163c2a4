"""Answers in the format of Anthropic's Messages: content blocks, stop reason, usage, and streams of
blocks.
"""

import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    Refusal,
    RefusalKind,
    Request,
    Usage,
)
from plimsoll.gateway.dialects.encoding import encode, sendable_arguments
from plimsoll.gateway.sse import sse_event
from plimsoll.trajectories.records import Finish

__all__ = [
    "SIGNATURE",
    "MessagesStream",
    "answer_blocks",
    "anthropic_error",
    "chunk_stop_sequence",
    "messages_usage",
    "stop_fields",
    "stop_sequence",
]

_TYPES: dict[RefusalKind, str] = {
    "unauthorized": "authentication_error",
    "ended": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "too_many": "rate_limit_error",
    "busy": "overloaded_error",
    "upstream": "api_error",
    "timeout": "timeout_error",
}

# The figures in servers' messages about a context that is too long. Clients distinguish a prompt
# that would fit with a smaller `max_tokens` from one that does not fit at all.
_LIMIT = re.compile(
    r"(?:context length(?: is| of)?(?: only)?|context size|model's context length) ?\(?(\d+)"
)
_PROMPT = re.compile(
    r"(\d+) (?:in the messages|input tokens|tokens from the input)|\((\d+) tokens\)"
)
_ASKED = re.compile(
    r"too large: (\d+)|(\d+) in the completion|(\d+) output tokens|(\d+) tokens for the completion"
)


def anthropic_error(refusal: Refusal) -> bytes:
    """The body of an error, and the data of an `error` event."""
    error: dict[str, Any] = {
        "type": _TYPES.get(refusal.kind, "invalid_request_error"),
        "message": _message(refusal),
    }
    return encode({"type": "error", "error": error})


def _message(refusal: Refusal) -> str:
    if refusal.kind == "context_length":
        return _too_long(refusal.message)
    return refusal.message


def _too_long(message: str) -> str:
    """The message that clients look for, with the figures if the server reported them."""
    limit, prompt, asked = (_figure(pattern, message) for pattern in (_LIMIT, _PROMPT, _ASKED))
    if limit is None or prompt is None:
        return f"prompt is too long: {message}"
    if asked and prompt < limit:
        return (
            f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, "
            "decrease input length or `max_tokens` and try again"
        )
    return f"prompt is too long: {prompt} tokens > {limit} maximum"


def _figure(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return next((int(group) for group in found.groups() if group), None) if found else None


SIGNATURE = "plimsoll"
"""Clients require a signature with every thinking block, and send it back. It is not used here."""

_REASONS: dict[Finish, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refused": "refusal",
}


class _Choice(msgspec.Struct):
    stop_reason: int | str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []


_BODY = msgspec.json.Decoder(_Body)


def answer_blocks(request: Request, answer: Answer) -> list[dict[str, Any]]:
    """The content of a whole answer."""
    message = answer.message
    content: list[dict[str, Any]] = []
    if message.reasoning and request.wants_reasoning:
        thought = {"type": "thinking", "thinking": message.reasoning, "signature": SIGNATURE}
        content.append(thought)
    if message.text:
        content.append({"type": "text", "text": message.text})
    for call in message.calls:
        given = msgspec.Raw(sendable_arguments(call.arguments).encode())
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return content


def stop_fields(answer: Answer, sequence: str | None) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`; `sequence` is the stop sequence that ended the answer."""
    if sequence is not None and answer.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    # Some servers report a plain stop for an answer with calls.
    finish = "tool_calls" if answer.message.calls and answer.finish == "stop" else answer.finish
    return {"stop_reason": _REASONS[finish], "stop_sequence": None}


def stop_sequence(request: Request, answer: Answer) -> str | None:
    """The stop sequence that ended a whole answer, if the upstream reports it."""
    if answer.raw is None or "stop" not in request.settings:
        return None
    return chunk_stop_sequence(request, encode({"choices": answer.raw.get("choices")}))


def chunk_stop_sequence(request: Request, data: bytes) -> str | None:
    """The stop sequence in the last piece of a stream."""
    if "stop" not in request.settings:
        return None
    try:
        choices = _BODY.decode(data).choices
    except DECODE_ERRORS:
        return None
    reason = choices[0].stop_reason if choices else None
    return reason if isinstance(reason, str) else None


def messages_usage(usage: Usage | None) -> dict[str, Any]:
    counted = usage or Usage(0, 0)
    return {
        "input_tokens": max(0, counted.prompt - counted.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counted.cached,
        "output_tokens": counted.answer,
    }


_PING = sse_event(b'{"type":"ping"}', "ping")

_CHUNKS_PER_PING = 64
"""The number of pieces without output until the client gets a ping."""


class MessagesStream:
    """Writes texts and thoughts as they arrive. The arguments of a call are sent when they are
    complete: a client cannot handle half a JSON object."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events: list[bytes] = []
        self._index = -1
        self._open: str | int | None = None
        """`text`, `thinking`, or the index of the call of the open block."""
        self._unsent: list[str] = []
        """The pieces that are not sent yet."""
        self._calls = 0
        self._stop_sequence: str | None = None
        self._silent_chunks = 0

    def start(self) -> bytes:
        message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": messages_usage(None),
        }
        self._send("message_start", {"message": message})
        return self._take_events()

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        for chunk in chunks:
            if chunk.reasoning and self._request.wants_reasoning:
                self._append("thinking", chunk.reasoning)
            if chunk.text:
                self._append("text", chunk.text)
            for delta in chunk.calls:
                self._call(delta)
            if chunk.finish is not None:
                self._stop_sequence = chunk_stop_sequence(self._request, chunk.data)
        if isinstance(self._open, str):
            self._flush(self._open)
        return self._take_events() or self._ping_if_silent(len(chunks))

    def end(self, answer: Answer) -> bytes:
        self._close()
        ending = {
            "delta": stop_fields(answer, self._stop_sequence),
            "usage": messages_usage(answer.usage),
        }
        self._send("message_delta", ending)
        self._send("message_stop", {})
        return self._take_events()

    def ping(self) -> bytes:
        return _PING

    def fail(self, refusal: Refusal) -> bytes:
        return sse_event(anthropic_error(refusal), "error")

    def whole(self, answer: Answer) -> bytes:
        """A stream with the whole content of `answer`."""
        message = answer.message
        calls = [
            CallDelta(index, call.id, call.name, call.arguments)
            for index, call in enumerate(message.calls)
        ]
        chunk = Chunk(b"", message.text, message.reasoning, calls)
        self._stop_sequence = stop_sequence(self._request, answer)
        return b"".join((self.start(), self.chunks([chunk]), self.end(answer)))

    def _append(self, kind: str, text: str) -> None:
        if self._open != kind:
            thought = {"thinking": "", "signature": ""}
            self._begin(kind, thought if kind == "thinking" else {"text": ""})
        self._unsent.append(text)

    def _call(self, delta: CallDelta) -> None:
        if self._open != delta.index:
            if delta.index < self._calls:
                # The client has already seen the end of this block.
                raise Refusal("upstream", "the upstream's stream returned to an earlier call")
            self._begin("tool_use", {"id": delta.id, "name": delta.name, "input": {}})
            self._open, self._calls = delta.index, delta.index + 1
        self._unsent.append(delta.arguments)

    def _begin(self, kind: str, block: dict[str, Any]) -> None:
        self._close()
        self._open = kind
        self._index += 1
        opened = {"index": self._index, "content_block": {"type": kind, **block}}
        self._send("content_block_start", opened)

    def _close(self) -> None:
        if self._open is None:
            return
        if isinstance(self._open, int):
            arguments = sendable_arguments("".join(self._unsent))
            self._delta({"type": "input_json_delta", "partial_json": arguments})
        else:
            self._flush(self._open)
        if self._open == "thinking":
            self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._send("content_block_stop", {"index": self._index})
        self._open = None
        self._unsent.clear()

    def _flush(self, kind: str) -> None:
        if self._unsent:
            self._delta({"type": f"{kind}_delta", kind: "".join(self._unsent)})
            self._unsent.clear()

    def _delta(self, delta: dict[str, Any]) -> None:
        self._send("content_block_delta", {"index": self._index, "delta": delta})

    def _send(self, name: str, fields: dict[str, Any]) -> None:
        self._events.append(sse_event(encode({"type": name, **fields}), name))

    def _ping_if_silent(self, count: int) -> bytes:
        self._silent_chunks += count
        if self._silent_chunks < _CHUNKS_PER_PING:
            return b""
        self._silent_chunks = 0
        return _PING

    def _take_events(self) -> bytes:
        events = b"".join(self._events)
        self._events.clear()
        return events
