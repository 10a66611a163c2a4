"""The dialect of OpenAI's Responses.

Nothing is stored between requests: an agent sends its whole history each time, and the same items
become the same bytes for the policy each time.
"""

from typing import Any

import msgspec

from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.gateway.completions import Answer, Refusal, Request
from plimsoll.gateway.dialects.encoding import decode, encode, history, read_object
from plimsoll.gateway.dialects.openai_errors import openai_error
from plimsoll.gateway.dialects.responses.input import read_input
from plimsoll.gateway.dialects.responses.output import Frame, ResponsesRequest, output_of
from plimsoll.gateway.dialects.responses.stream import ResponsesStream
from plimsoll.gateway.dialects.responses.tools import ToolList, read_choice, read_tools

__all__ = ["ResponsesDialect"]

_NULL = b"null"

_IGNORED = frozenset(
    {
        "client_metadata",
        "include",
        "max_tool_calls",
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "truncation",
        "user",
    }
)
"""Fields without effect on the policy."""

_STORED = {
    "previous_response_id": "answers are not stored here; send the whole history as `input`",
    "conversation": "conversations are not stored here; send the whole history as `input`",
    "prompt": "prompts are not stored here; send `instructions` and `input`",
}

_OF_CHAT = frozenset(
    {"messages", "n", "logprobs", "functions", "function_call", "max_tokens", "response_format"}
)
"""Fields of Chat Completions that would conflict with the translated fields."""

_EFFORTS = frozenset({"low", "medium", "high"})
"""The values that every server accepts. Others are dropped."""

_TEXT = msgspec.json.Decoder(str)
_FLAG = msgspec.json.Decoder(bool)
_COUNT = msgspec.json.Decoder(int)
_NUMBER = msgspec.json.Decoder(float)
_INCLUDE = msgspec.json.Decoder(list[str])
_METADATA = msgspec.json.Decoder(dict[str, Any])


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class _Format(msgspec.Struct):
    type: str
    name: str = "answer"
    schema: msgspec.Raw = msgspec.Raw(b"{}")
    strict: bool | None = None
    description: str | None = None


class _Shape(msgspec.Struct):
    format: _Format | None = None


_REASONING = msgspec.json.Decoder(_Reasoning)
_SHAPE = msgspec.json.Decoder(_Shape)


class ResponsesDialect:
    """Responses."""

    name = "responses"

    def read(self, body: bytes, _: BodyPrefix | None = None, /) -> Request:
        fields = {name: raw for name, raw in read_object(body).items() if bytes(raw) != _NULL}
        _refuse(fields)
        for name in ("model", "input"):
            if name not in fields:
                raise Refusal("bad_request", f"{name} is missing", param=name)
        conversation = read_input(fields.pop("input"), _text(fields, "instructions"))
        parsed, messages = history(conversation.messages())
        lists = [ToolList("tools", fields.pop("tools"))] if "tools" in fields else []
        tools, agent_tools = read_tools(lists + conversation.tools)
        include = decode(fields["include"], _INCLUDE, "include") if "include" in fields else []
        request = ResponsesRequest(
            model=_text(fields, "model"),
            stream="stream" in fields and decode(fields.pop("stream"), _FLAG, "stream"),
            history=parsed,
            messages=messages,
            tools=tools,
            agent_tools=agent_tools,
            encrypted="reasoning.encrypted_content" in include,
        )
        _set(request, fields)
        return request

    def write(self, request: Request, answer: Answer) -> bytes:
        frame = Frame(request)
        return encode(frame.whole(answer, output_of(answer, frame)))

    def stream(self, request: Request) -> ResponsesStream:
        return ResponsesStream(request)

    def refuse(self, refusal: Refusal) -> bytes:
        return openai_error(refusal)


def _refuse(fields: dict[str, msgspec.Raw]) -> None:
    for name, why in _STORED.items():
        if name in fields:
            raise Refusal("unsupported", f"{name}: {why}", param=name)
    if "background" in fields and decode(fields.pop("background"), _FLAG, "background"):
        message = "background: a request is answered while its connection is open; send false"
        raise Refusal("unsupported", message, param="background")
    for name in sorted(_OF_CHAT & fields.keys()):
        raise Refusal("bad_request", f"{name} is not a field of Responses", param=name)


def _text(fields: dict[str, msgspec.Raw], name: str) -> str:
    return decode(fields.pop(name), _TEXT, name) if name in fields else ""


def _set(request: ResponsesRequest, fields: dict[str, msgspec.Raw]) -> None:
    """Set the fields for the upstream, and those that the answer repeats."""
    echoed, settings = request.echoed, request.settings
    if "metadata" in fields:
        echoed["metadata"] = decode(fields["metadata"], _METADATA, "metadata")
    for name in ("temperature", "top_p"):
        if name in fields:
            echoed[name] = decode(fields[name], _NUMBER, name)
    if "max_output_tokens" in fields:
        limit = fields.pop("max_output_tokens")
        echoed["max_output_tokens"] = decode(limit, _COUNT, "max_output_tokens")
        settings["max_tokens"] = limit
    _set_tools(request, fields)
    if "reasoning" in fields:
        effort = decode(fields.pop("reasoning"), _REASONING, "reasoning").effort
        if effort in _EFFORTS:
            settings["reasoning_effort"] = _raw(effort)
    if "text" in fields and (format := decode(fields.pop("text"), _SHAPE, "text").format):
        _set_format(settings, format)
    settings.update((name, raw) for name, raw in fields.items() if name not in _IGNORED)


def _set_tools(request: ResponsesRequest, fields: dict[str, msgspec.Raw]) -> None:
    parallel, choice = fields.pop("parallel_tool_calls", None), fields.pop("tool_choice", None)
    if parallel is not None:
        request.echoed["parallel_tool_calls"] = decode(parallel, _FLAG, "parallel_tool_calls")
    chosen = None if choice is None else read_choice(choice, request.agent_tools)
    # Servers reject both without tools.
    if request.tools is None:
        return
    if parallel is not None:
        request.settings["parallel_tool_calls"] = parallel
    if chosen is not None:
        request.settings["tool_choice"] = _raw(chosen)


def _set_format(settings: dict[str, msgspec.Raw], format: _Format) -> None:
    match format.type:
        case "text":
            return
        case "json_object":
            settings["response_format"] = _raw({"type": "json_object"})
        case "json_schema":
            schema: dict[str, object] = {"name": format.name, "schema": format.schema}
            if format.strict is not None:
                schema["strict"] = format.strict
            if format.description is not None:
                schema["description"] = format.description
            settings["response_format"] = _raw({"type": "json_schema", "json_schema": schema})
        case _:
            at = "text.format.type"
            raise Refusal("unsupported", f"{at}: unknown type `{format.type}`", param=at)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encode(value))
