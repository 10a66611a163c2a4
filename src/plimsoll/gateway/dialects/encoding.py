"""JSON bodies, and messages in the form of Chat Completions, for every dialect.

The same messages must be sent to the policy as the same bytes in every turn: otherwise the tokens
of a history are not a prefix of the next one. So each message is encoded by itself, from its
content only.

Tool results are sent as text. Few chat templates accept an image in a tool message, so images
follow in a user message after the last result of the turn, and the result mentions them.
"""

import codecs
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal, TypeVar

import msgspec

from plimsoll.core.text import DECODE_ERRORS, replace_lone_surrogates
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.size_limits import MAX_PARTS, check_count, check_values
from plimsoll.trajectories.messages import (
    Image,
    Message,
    Other,
    Part,
    Role,
    Text,
    ToolCall,
    raw_key,
)

__all__ = [
    "INVALID_ARGUMENTS",
    "ParsedHistory",
    "chat_to_message",
    "decode",
    "encode",
    "history",
    "joined",
    "message_to_chat",
    "read_object",
    "sendable_arguments",
    "split_result",
]

T = TypeVar("T")
Json = dict[str, Any]

INVALID_ARGUMENTS = "_invalid_arguments"
"""The field for arguments that are not a JSON object: they are sent as an object with this one
field, whose value is the policy's text. Servers parse the arguments of earlier calls, and reject
the whole request otherwise. An agent does not know the field and answers the call with an error,
from which the policy can recover.
"""

encode = msgspec.json.Encoder().encode

_UTF8 = codecs.getincrementaldecoder("utf-8")
_PIECE = 1 << 20
"""Bytes checked at a time: the whole body as text could take four times its size."""
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_NULL = msgspec.Raw(b"null")


def read_object(body: bytes | msgspec.Raw, where: str = "") -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, as raw bytes."""
    if where:
        return decode(body, _FIELDS, where)
    data = bytes(body)
    _check_text(data)
    check_values(data)
    try:
        return decode(data, _FIELDS, where)
    except Refusal:
        repaired = replace_lone_surrogates(data)
        if repaired is data:
            raise
        return decode(repaired, _FIELDS, where)


def _check_text(body: bytes) -> None:
    if not body.strip():
        raise Refusal("bad_request", "the body is empty; send a JSON object")
    decoder = _UTF8()
    try:
        for at in range(0, len(body), _PIECE):
            decoder.decode(body[at : at + _PIECE], final=at + _PIECE >= len(body))
    except UnicodeDecodeError as error:
        raise Refusal("bad_request", f"the body is not UTF-8: {error.reason}") from None


def decode(raw: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], where: str) -> T:
    """Decode a field of a body; `where` is its name, as in `messages[3]`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        # msgspec writes `$[3].role`, or `key in $` for the top level.
        location = (where + path.rstrip("`").rpartition("$")[2]).lstrip(".")
        problem = f"{location or 'the body'}: {reason}"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        location, problem = where, f"{where or 'the body'} is not valid JSON: {error}"
    except RecursionError:
        location, problem = where, f"{where or 'the body'} is nested too deeply"
    raise Refusal("bad_request", problem, param=location or None)


class ParsedHistory:
    """Messages translated from another dialect."""

    __slots__ = ("_encoded", "_messages")

    def __init__(self, messages: Sequence[Message], encoded: Sequence[bytes]) -> None:
        self._messages = messages
        self._encoded = encoded

    def __len__(self) -> int:
        return len(self._messages)

    def key(self, index: int) -> bytes:
        return raw_key(self._encoded[index])

    def message(self, index: int) -> Message:
        return self._messages[index]


def history(messages: Sequence[Message]) -> tuple[ParsedHistory, msgspec.Raw]:
    """`Request.history` and `Request.messages` for dialects other than chat."""
    encoded = [encode(message_to_chat(message, sendable=True)) for message in messages]
    return ParsedHistory(messages, encoded), msgspec.Raw(b"[" + b",".join(encoded) + b"]")


def joined(parts: Iterable[Part], separator: str) -> tuple[Part, ...]:
    """Merge adjacent texts, so that a text message is sent as a string, which every server and chat
    template accepts. Empty texts are dropped."""
    merged: list[Part] = []
    nonempty = (part for part in parts if not isinstance(part, Text) or part.text)
    for are_texts, group in groupby(nonempty, key=lambda part: isinstance(part, Text)):
        if are_texts:
            merged.append(
                Text(separator.join(part.text for part in group if isinstance(part, Text)))
            )
        else:
            merged += group
    return tuple(merged)


def sendable_arguments(arguments: str) -> str:
    """The arguments as a valid JSON object: see `INVALID_ARGUMENTS`."""
    if not arguments.strip():
        return "{}"
    try:
        _FIELDS.decode(arguments)
    except DECODE_ERRORS:
        return encode({INVALID_ARGUMENTS: arguments}).decode()
    return arguments


def message_to_chat(message: Message, *, sendable: bool = False) -> Json:
    """A message as a Chat Completions object; `sendable` makes its arguments valid JSON objects."""
    chat: Json = {"role": message.role, "content": _content(message)}
    if message.name:
        chat["name"] = message.name
    if message.reasoning:
        # Older and newer servers use different names, and ignore the other one.
        chat["reasoning_content"] = chat["reasoning"] = message.reasoning
    if message.calls:
        chat["tool_calls"] = [_call(call, sendable=sendable) for call in message.calls]
    if message.role == "tool" or message.call_id:
        chat["tool_call_id"] = message.call_id
    return chat


def _content(message: Message) -> object:
    parts = message.parts
    if not parts:
        # Servers require a content, except beside calls.
        return None if message.calls else ""
    first = parts[0]
    if len(parts) == 1 and isinstance(first, Text) and first.text:
        return first.text
    return [_part(part) for part in parts]


def _part(part: Part) -> object:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(url):
            return {"type": "image_url", "image_url": {"url": url}}
        case Other(value):
            return value


def _call(call: ToolCall, *, sendable: bool) -> Json:
    arguments = sendable_arguments(call.arguments) if sendable else call.arguments
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


class _Function(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b'""')


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Url(msgspec.Struct):
    url: str


class _ChatPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None
    audio_url: msgspec.Raw = _NULL
    video_url: msgspec.Raw = _NULL
    input_audio: msgspec.Raw = _NULL
    file: msgspec.Raw = _NULL
    audio_embeds: msgspec.Raw = _NULL
    image_embeds: msgspec.Raw = _NULL
    image_pil: msgspec.Raw = _NULL


_TEXTS = frozenset({"text", "refusal", "input_text", "output_text", "thinking", "reasoning"})
_MEDIA = tuple(_ChatPart.__struct_fields__[3:])
_PASSED_ON = frozenset({"image_url", "audio_url", "video_url", "input_audio", "file"})


class _ChatMessage(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[msgspec.Raw] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    tool_call_id: str | None = None
    name: str | None = None


_MESSAGE = msgspec.json.Decoder(_ChatMessage)
_PART = msgspec.json.Decoder(_ChatPart)

_ROLES: dict[str, Role] = {"developer": "system", "function": "tool"}


def chat_to_message(raw: bytes | msgspec.Raw, where: str = "message") -> Message:
    """Parse a Chat Completions message. Raises `Refusal` with the invalid field."""
    chat = decode(raw, _MESSAGE, where)
    check_count(len(chat.tool_calls or ()), MAX_PARTS, f"{where}.tool_calls")
    calls = [_read_call(call, call.function, where) for call in chat.tool_calls or ()]
    if chat.function_call is not None:
        calls.append(_read_call(None, chat.function_call, where))
    return Message(
        role=_ROLES.get(chat.role) or chat.role,  # type: ignore[arg-type]
        parts=_read_content(chat, where),
        reasoning=chat.reasoning_content or chat.reasoning or "",
        calls=tuple(calls),
        call_id=chat.tool_call_id or "",
        name=chat.name or "",
    )


def _read_call(call: _Call | None, function: _Function, where: str) -> ToolCall:
    arguments = bytes(function.arguments)
    # Some clients write the arguments as an object.
    text = (
        decode(arguments, _STRING, f"{where}.tool_calls")
        if arguments[:1] == b'"'
        else ("" if arguments == b"null" else arguments.decode())
    )
    return ToolCall((call.id if call else None) or "", function.name, text)


def _read_content(chat: _ChatMessage, where: str) -> tuple[Part, ...]:
    if chat.content is None:
        return (Text(chat.refusal),) if chat.refusal else ()
    if isinstance(chat.content, str):
        return (Text(chat.content),) if chat.content else ()
    check_count(len(chat.content), MAX_PARTS, f"{where}.content")
    return tuple(
        _read_part(raw, f"{where}.content[{index}]") for index, raw in enumerate(chat.content)
    )


def _read_part(raw: msgspec.Raw, where: str) -> Part:
    part = decode(raw, _PART, where)
    _check_keys(part, where)
    if part.type == "text" and part.text is not None:
        return Text(part.text)
    if part.type == "refusal" and part.refusal is not None:
        return Text(part.refusal)
    if part.type == "image_url" and part.image_url is not None:
        return Image(part.image_url if isinstance(part.image_url, str) else part.image_url.url)
    # A copy: a slice would keep the whole body alive.
    return Other(msgspec.Raw(bytes(raw)))


def _check_keys(part: _ChatPart, where: str) -> None:
    """Check that a part has only the media key of its type: servers differ in which one they
    use."""
    if part.type not in _TEXTS and part.type not in _PASSED_ON:
        message = f"{where}: a part of type `{part.type}` is not supported"
        raise Refusal("unsupported", message, param=f"{where}.type")
    for name in _MEDIA:
        if name != part.type and getattr(part, name) not in (None, _NULL):
            message = f"{where}: a part of type `{part.type}` must not have {name}"
            raise Refusal("bad_request", message, param=f"{where}.{name}")


def split_result(parts: Iterable[Part]) -> tuple[str, list[Part]]:
    """The text of a tool result, and the parts that follow in a user message."""
    texts: list[str] = []
    following: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
            continue
        kind = "image" if isinstance(part, Image) else "attachment"
        texts.append(f"[{kind}: in the message that follows]")
        following.append(part)
    return "\n".join(text for text in texts if text), following
