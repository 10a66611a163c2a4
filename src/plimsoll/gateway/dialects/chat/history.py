"""The messages of a chat request, and the repair of those that servers reject.

Messages parsed in an earlier request are not parsed again. Nearly all messages are forwarded
unchanged. Two kinds are not: roles that chat templates do not know, and calls whose arguments are
not JSON. A policy writes such a call now and then, the agent keeps it in its history, and a server
that parses it would fail every later request.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from plimsoll.gateway.body_prefixes import BodyPrefix
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.encoding import (
    chat_to_message,
    decode,
    encode,
    read_object,
    sendable_arguments,
)
from plimsoll.gateway.dialects.size_limits import MAX_MESSAGES, check_count
from plimsoll.trajectories.messages import Message, raw_key

__all__ = ["ChatBody", "RawHistory", "read_chat_body", "repaired_messages"]


class _Function(msgspec.Struct):
    arguments: str | dict[str, msgspec.Raw] | None = None


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Calls(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _Head(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]


_HEAD = msgspec.json.Decoder(_Head)
_CALLS = msgspec.json.Decoder(_Calls)
_CALL_FIELDS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])

# Nearly all clients write the role first, so that no parsing is needed.
_PLAIN = re.compile(rb'\{"role": ?"(?:system|user|tool)"')
_ANSWER = re.compile(rb'\{"role": ?"assistant"')

_SENT_AS = {"developer": msgspec.Raw(b'"system"'), "function": msgspec.Raw(b'"tool"')}


def repaired_messages(messages: Sequence[msgspec.Raw]) -> dict[int, msgspec.Raw]:
    """The replacements of messages that need repair, by index. Raises `Refusal` for an invalid
    message."""
    plain = _PLAIN.match
    return {
        index: replacement
        for index, raw in enumerate(messages)
        if plain(raw) is None
        and (replacement := _replacement(raw, f"messages[{index}]")) is not None
    }


def _replacement(raw: msgspec.Raw, where: str) -> msgspec.Raw | None:
    role = "assistant" if _ANSWER.match(raw) else decode(raw, _HEAD, where).role
    if role in _SENT_AS:
        return msgspec.Raw(encode({**read_object(raw, where), "role": _SENT_AS[role]}))
    if role == "assistant" and b'"tool_calls"' in bytes(raw):
        return _with_sendable_calls(raw, where)
    return None


def _with_sendable_calls(raw: msgspec.Raw, where: str) -> msgspec.Raw | None:
    calls = decode(raw, _CALLS, where).tool_calls or ()
    invalid = {
        index: sent for index, call in enumerate(calls) if (sent := _sendable(call)) is not None
    }
    if not invalid:
        return None
    fields = read_object(raw, where)
    call_list = _CALL_FIELDS.decode(fields["tool_calls"])
    for index, sent in invalid.items():
        function = read_object(call_list[index]["function"], where)
        function["arguments"] = msgspec.Raw(encode(sent))
        call_list[index]["function"] = msgspec.Raw(encode(function))
    fields["tool_calls"] = msgspec.Raw(encode(call_list))
    return msgspec.Raw(encode(fields))


def _sendable(call: _Call) -> str | None:
    arguments = call.function.arguments if call.function is not None else None
    if not isinstance(arguments, str):
        return None
    sent = sendable_arguments(arguments)
    return None if sent == arguments else sent


_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])

_REST = b'{"messages":['

TRIES = 8
"""The number of places in a body that may look like the array of messages. A body full of such
places must not block the event loop, so it is parsed from its beginning in every turn.
"""


class RawHistory:
    """The messages of a chat request, each parsed on first use."""

    __slots__ = ("_array", "_keys", "_last")

    def __init__(
        self, array: msgspec.Raw, keys: tuple[bytes, ...], last: Sequence[msgspec.Raw]
    ) -> None:
        self._array = array
        self._keys = keys
        self._last = last
        """The messages that are already cut out of the array, at its end."""

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, index: int) -> bytes:
        return self._keys[index]

    def message(self, index: int) -> Message:
        from_end = index - len(self._keys)
        if -from_end > len(self._last):
            self._last = _MESSAGES.decode(self._array)
        return chat_to_message(self._last[from_end], f"messages[{index}]")


class ChatBody(msgspec.Struct, frozen=True):
    """The messages and the other fields of a body."""

    fields: dict[str, msgspec.Raw]
    history: RawHistory
    messages: msgspec.Raw
    """The messages to send."""
    new_prefix: BodyPrefix | None


def read_chat_body(body: bytes, prefix: BodyPrefix | None) -> ChatBody:
    """Parse a body. Raises `Refusal` if it is not a conversation."""
    if prefix is not None:
        # On errors, parse from the beginning, so that the message names the right location.
        try:
            return _read_rest(body, prefix) or _read(body)
        except Refusal:
            pass
    return _read(body)


def _read(body: bytes) -> ChatBody:
    fields = read_object(body)
    if "messages" not in fields:
        raise Refusal("bad_request", "messages is missing", param="messages")
    before = {name: raw.copy() for name, raw in _fields_before_messages(fields)}
    array = fields.pop("messages")
    messages = decode(array, _MESSAGES, "messages")
    if not messages:
        raise Refusal("bad_request", "messages is empty", param="messages")
    check_count(len(messages), MAX_MESSAGES, "messages")
    keys = tuple(raw_key(message) for message in messages)
    history, sent = RawHistory(array, keys, messages), repaired_messages(messages)
    if sent:
        whole = encode([sent.get(index, raw) for index, raw in enumerate(messages)])
        return ChatBody(fields, history, msgspec.Raw(whole), None)
    return ChatBody(fields, history, array, _find_prefix(body, before, array, keys))


def _read_rest(body: bytes, prefix: BodyPrefix) -> ChatBody | None:
    """Parse only the messages after the known prefix; None if that is not possible."""
    at = prefix.size + (body[prefix.size] == ord(","))
    rest = _REST + body[at:]
    fields = read_object(rest)
    array = fields.pop("messages")
    new = decode(array, _MESSAGES, "messages")
    check_count(len(prefix.keys) + len(new), MAX_MESSAGES, "messages")
    end = at + len(array) - 2
    is_first = rest.startswith(array, len(_REST) - 1)  # not another field of this name
    if not is_first or bool(new) != (at > prefix.size) or repaired_messages(new):
        return None
    keys = prefix.keys + tuple(raw_key(message) for message in new)
    messages = msgspec.Raw(memoryview(body)[prefix.start : end + 1])
    new_prefix = BodyPrefix(prefix.start, end, prefix.fields, keys)
    return ChatBody(
        {**prefix.fields, **fields}, RawHistory(messages, keys, new), messages, new_prefix
    )


def _fields_before_messages(fields: dict[str, msgspec.Raw]) -> list[tuple[str, msgspec.Raw]]:
    names = list(fields)
    return [(name, fields[name]) for name in names[: names.index("messages")]]


def _find_prefix(
    body: bytes, before: dict[str, msgspec.Raw], array: msgspec.Raw, keys: tuple[bytes, ...]
) -> BodyPrefix | None:
    """Locate the array in the body: the decoder does not report offsets."""
    start = -1
    for _ in range(TRIES):
        at = body.find(b'"messages"', start + 1)
        start = body.find(b"[", at) if at >= 0 else -1
        if start < 0:
            return None
        if body.startswith(array, start):
            return BodyPrefix(start, start + len(array) - 1, before, keys)
    return None
