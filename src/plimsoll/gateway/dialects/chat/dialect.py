"""The dialect of OpenAI's Chat Completions, which upstreams speak too.

Nothing is parsed without need: messages are forwarded as the bytes that the agent sent, and pieces
of a stream as the bytes that the upstream sent.
"""

from typing import Any

import msgspec

from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.gateway.completions import Answer, Refusal, Request
from plimsoll.gateway.dialects.chat.history import read_chat_body
from plimsoll.gateway.dialects.chat.stream import (
    ChatStream,
    answer_head,
    chat_usage,
    finish_name,
)
from plimsoll.gateway.dialects.chat.token_fields import (
    TOKEN_FIELDS,
    answer_token_fields,
    prompt_token_fields,
)
from plimsoll.gateway.dialects.encoding import (
    decode,
    encode,
    message_to_chat,
)
from plimsoll.gateway.dialects.openai_errors import openai_error
from plimsoll.gateway.dialects.size_limits import MAX_STOPS, MAX_TOOLS, check_count

__all__ = ["ChatDialect"]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_TOOLS = msgspec.json.Decoder(list[msgspec.Raw] | None)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_FLAG = msgspec.json.Decoder(bool | None)
_COUNT = msgspec.json.Decoder(int | None)
_OPTIONS = msgspec.json.Decoder(_StreamOptions | None)
_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])

_NULL = msgspec.Raw(b"null")


class ChatDialect:
    """Chat Completions."""

    name = "chat"

    def read(self, body: bytes, prefix: BodyPrefix | None = None, /) -> Request:
        parsed = read_chat_body(body, prefix)
        fields = parsed.fields
        if "model" not in fields:
            raise Refusal("bad_request", "model is missing", param="model")
        _refuse_choices(fields)
        _check_stops(fields)
        options = decode(fields.pop("stream_options", _NULL), _OPTIONS, "stream_options")
        return Request(
            model=decode(fields.pop("model"), _STRING, "model"),
            stream=bool(decode(fields.pop("stream", _NULL), _FLAG, "stream")),
            history=parsed.history,
            messages=parsed.messages,
            prefix=parsed.new_prefix,
            tools=_read_tools(fields.pop("tools", _NULL)),
            settings=fields,
            wants_usage=options is not None and bool(options.include_usage),
            wants_logprobs=_requests_field(fields, "logprobs"),
            wants_ids=_requests_field(fields, "return_token_ids"),
        )

    def write(self, request: Request, answer: Answer) -> bytes:
        if answer.raw is None:
            return encode(_whole(request, answer))
        body = {name: raw for name, raw in answer.raw.items() if name != "prompt_token_ids"}
        choices = _CHOICES.decode(answer.raw["choices"])
        for choice in choices:
            for name in TOKEN_FIELDS:
                choice.pop(name, None)
        choices[0] |= answer_token_fields(request, answer)
        body |= prompt_token_fields(request, answer)
        return encode({**body, "model": request.model, "choices": choices})

    def stream(self, request: Request) -> ChatStream:
        return ChatStream(request)

    def refuse(self, refusal: Refusal) -> bytes:
        return openai_error(refusal)


def _requests_field(fields: dict[str, msgspec.Raw], name: str) -> bool:
    requested = bool(decode(fields.get(name, _NULL), _FLAG, name))
    if not requested:
        # Left out rather than sent as false: the gateway itself asks for it.
        fields.pop(name, None)
    return requested


def _refuse_choices(fields: dict[str, msgspec.Raw]) -> None:
    count = decode(fields.get("n", _NULL), _COUNT, "n")
    if count is not None and count != 1:
        message = f"n is {count}; a request gets one answer. Omit n, and send several requests."
        raise Refusal("unsupported", message, param="n")


def _check_stops(fields: dict[str, msgspec.Raw]) -> None:
    stops = fields.get("stop", _NULL)
    if bytes(stops)[:1] == b"[":
        check_count(len(decode(stops, _LIST, "stop")), MAX_STOPS, "stop")


def _read_tools(raw: msgspec.Raw) -> msgspec.Raw | None:
    tools = decode(raw, _TOOLS, "tools")
    check_count(len(tools or ()), MAX_TOOLS, "tools")
    return raw if tools else None


def _whole(request: Request, answer: Answer) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": message_to_chat(answer.message),
        "finish_reason": finish_name(answer),
        **answer_token_fields(request, answer),
    }
    body = {**answer_head(request, answer.id, "chat.completion"), "choices": [choice]}
    body |= prompt_token_fields(request, answer)
    if answer.usage is not None:
        body["usage"] = chat_usage(answer.usage)
    return body
