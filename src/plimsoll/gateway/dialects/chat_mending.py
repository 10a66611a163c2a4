"""Messages of the chat dialect that servers would not take as they are, and what is sent instead.

Nearly every message goes on as it came. Two kinds do not: roles that chat templates do not know,
and calls whose arguments are no JSON. A policy writes such a call now and then, an agent keeps it
in its history, and a server that parses it fails on every request from then on.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from plimsoll.gateway.dialects.encoding import decode, encode, read_object, sendable_arguments

__all__ = ["mended"]


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

# Nearly every client writes the role first; then nothing else needs to be parsed for it.
_PLAIN = re.compile(rb'\{"role": ?"(?:system|user|tool)"')
_ANSWER = re.compile(rb'\{"role": ?"assistant"')

_SENT_AS = {"developer": msgspec.Raw(b'"system"'), "function": msgspec.Raw(b'"tool"')}


def mended(messages: Sequence[msgspec.Raw]) -> dict[int, msgspec.Raw]:
    """What is sent instead of some messages, by their place. Raises `Refusal` for what is no
    message."""
    plain = _PLAIN.match
    return {
        index: instead
        for index, raw in enumerate(messages)
        if plain(raw) is None and (instead := _instead(raw, f"messages[{index}]")) is not None
    }


def _instead(raw: msgspec.Raw, where: str) -> msgspec.Raw | None:
    role = "assistant" if _ANSWER.match(raw) else decode(raw, _HEAD, where).role
    if role in _SENT_AS:
        return msgspec.Raw(encode({**read_object(raw, where), "role": _SENT_AS[role]}))
    if role == "assistant" and b'"tool_calls"' in bytes(raw):
        return _with_sendable_calls(raw, where)
    return None


def _with_sendable_calls(raw: msgspec.Raw, where: str) -> msgspec.Raw | None:
    calls = decode(raw, _CALLS, where).tool_calls or ()
    broken = {
        index: sent for index, call in enumerate(calls) if (sent := _sendable(call)) is not None
    }
    if not broken:
        return None
    fields = read_object(raw, where)
    listed = _CALL_FIELDS.decode(fields["tool_calls"])
    for index, sent in broken.items():
        function = read_object(listed[index]["function"], where)
        function["arguments"] = msgspec.Raw(encode(sent))
        listed[index]["function"] = msgspec.Raw(encode(function))
    fields["tool_calls"] = msgspec.Raw(encode(listed))
    return msgspec.Raw(encode(fields))


def _sendable(call: _Call) -> str | None:
    arguments = call.function.arguments if call.function is not None else None
    if not isinstance(arguments, str):
        return None
    sent = sendable_arguments(arguments)
    return None if sent == arguments else sent
