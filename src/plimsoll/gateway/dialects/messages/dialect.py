"""The dialect of Anthropic's Messages, and of its `count_tokens`.

Not forwarded: cache marks, metadata, and `thinking`, which only selects whether the agent sees the
reasoning; whether the policy reasons is a setting of its server.
"""

import msgspec

from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.gateway.completions import Answer, Refusal, Request
from plimsoll.gateway.dialects.encoding import decode, encode, history, read_object
from plimsoll.gateway.dialects.messages.answers import (
    MessagesStream,
    answer_blocks,
    anthropic_error,
    messages_usage,
    stop_fields,
    stop_sequence,
)
from plimsoll.gateway.dialects.messages.history import TextBlock, Turn, read_conversation
from plimsoll.gateway.dialects.messages.settings import read_settings, read_tools, wants_thinking
from plimsoll.gateway.dialects.size_limits import MAX_MESSAGES, check_count

__all__ = ["MessagesDialect", "write_count"]

_SYSTEM = msgspec.json.Decoder(str | list[TextBlock] | None)
_TURNS = msgspec.json.Decoder(list[Turn])
_STRING = msgspec.json.Decoder(str)
_FLAG = msgspec.json.Decoder(bool | None)

_NULL = msgspec.Raw(b"null")


class MessagesDialect:
    """Anthropic's Messages."""

    name = "messages"

    def read(self, body: bytes, _: BodyPrefix | None = None, /) -> Request:
        fields = read_object(body)
        for name in ("model", "messages"):
            if name not in fields:
                raise Refusal("bad_request", f"{name}: field required", param=name)
        turns = decode(fields.pop("messages"), _TURNS, "messages")
        if not turns:
            raise Refusal("bad_request", "messages: at least one is required", param="messages")
        check_count(len(turns), MAX_MESSAGES, "messages")
        system = decode(fields.pop("system", _NULL), _SYSTEM, "system")
        parsed_history, messages = history(read_conversation(system, turns))
        tools = read_tools(fields.pop("tools", _NULL))
        return Request(
            model=decode(fields.pop("model"), _STRING, "model"),
            stream=bool(decode(fields.pop("stream", _NULL), _FLAG, "stream")),
            wants_reasoning=wants_thinking(fields.pop("thinking", _NULL)),
            history=parsed_history,
            messages=messages,
            tools=tools,
            settings=read_settings(fields, tools is not None),
            continues=turns[-1].role == "assistant",
        )

    def write(self, request: Request, answer: Answer) -> bytes:
        return encode(
            {
                "id": answer.id,
                "type": "message",
                "role": "assistant",
                "model": request.model,
                "content": answer_blocks(request, answer),
                **stop_fields(answer, stop_sequence(request, answer)),
                "usage": messages_usage(answer.usage),
            }
        )

    def stream(self, request: Request) -> MessagesStream:
        return MessagesStream(request)

    def refuse(self, refusal: Refusal) -> bytes:
        return anthropic_error(refusal)


def write_count(tokens: int) -> bytes:
    """The answer of `count_tokens`."""
    return encode({"input_tokens": tokens})
