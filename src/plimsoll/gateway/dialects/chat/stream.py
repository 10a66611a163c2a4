"""Streams of Chat Completions: forwarded pieces of an upstream, or a whole answer in pieces."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from plimsoll.gateway.completions import (
    Answer,
    Chunk,
    Refusal,
    Request,
    Usage,
)
from plimsoll.gateway.dialects.chat.token_fields import (
    answer_token_fields,
    prompt_token_fields,
    without_tokens,
)
from plimsoll.gateway.dialects.encoding import encode
from plimsoll.gateway.dialects.openai_errors import openai_error
from plimsoll.gateway.sse import DONE_EVENT, PING_COMMENT, sse_event
from plimsoll.trajectories.records import Finish

__all__ = ["ChatStream", "answer_head", "chat_usage", "finish_name"]

_FINISHES: dict[Finish, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "refused": "content_filter",
}

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ChatStream:
    """Forwards pieces as bytes, but holds back the last one until the answer is recorded."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._held: list[bytes] = []
        self._usage: bytes | None = None

    def start(self) -> bytes:
        return b""

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        output: list[bytes] = []
        for chunk in chunks:
            if chunk.only_usage:
                self._usage = chunk.data if chunk.usage is not None else self._usage
                continue
            data = chunk.data
            if chunk.ids is not None or chunk.logprobs is not None:
                data = without_tokens(chunk, self._request)
            if chunk.prompt_ids is not None:
                data = self._with_prompt_ids(data, chunk)
            target = self._held if self._held or chunk.finish is not None else output
            target.append(sse_event(data))
        return b"".join(output)

    def end(self, answer: Answer) -> bytes:
        rest = self._held or [self._piece(answer, {}, finish_name(answer))]
        return b"".join((*rest, self._usage_event(answer), DONE_EVENT))

    def ping(self) -> bytes:
        return PING_COMMENT

    def fail(self, refusal: Refusal) -> bytes:
        return sse_event(openai_error(refusal))

    def whole(self, answer: Answer) -> bytes:
        """A stream with the whole content of `answer`."""
        message = answer.message
        # The role is sent once: clients concatenate the pieces of a field.
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if message.reasoning:
            deltas.append({"reasoning_content": message.reasoning})
        if message.text:
            deltas.append({"content": message.text})
        for index, call in enumerate(message.calls):
            function = {"name": call.name, "arguments": call.arguments}
            whole = {"index": index, "id": call.id, "type": "function", "function": function}
            deltas.append({"tool_calls": [whole]})
        pieces = [self._piece(answer, delta, None) for delta in deltas]
        pieces[0] = self._piece(answer, deltas[0], None, prompt_token_fields(self._request, answer))
        return b"".join(pieces) + self.end(answer)

    def _piece(
        self,
        answer: Answer,
        delta: dict[str, Any],
        finish: str | None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        if finish is not None:
            # The token fields come with the last piece: a whole answer does not tell the tokens of
            # each piece.
            choice |= answer_token_fields(self._request, answer)
        return sse_event(encode({**self._head(answer), "choices": [choice], **(extra or {})}))

    def _with_prompt_ids(self, data: bytes, chunk: Chunk) -> bytes:
        # They are as large as the prompt, and hardly any agent asks for them.
        fields = _FIELDS.decode(data)
        fields.pop("prompt_token_ids", None)
        if not self._request.wants_ids:
            return encode(fields)
        return encode({**fields, "prompt_token_ids": chunk.prompt_ids})

    def _usage_event(self, answer: Answer) -> bytes:
        if not self._request.wants_usage:
            return b""
        if self._usage is not None:
            return sse_event(self._usage)
        if answer.usage is None:
            return b""
        counts: dict[str, Any] = {"choices": [], "usage": chat_usage(answer.usage)}
        return sse_event(encode({**self._head(answer), **counts}))

    def _head(self, answer: Answer) -> dict[str, Any]:
        return answer_head(self._request, answer.id, "chat.completion.chunk")


def answer_head(request: Request, id: str, kind: str) -> dict[str, Any]:
    """The first fields of every object of an answer."""
    return {"id": id, "object": kind, "created": int(time.time()), "model": request.model}


def finish_name(answer: Answer) -> str:
    return _FINISHES[answer.finish]


def chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
