"""Ids for tool calls of servers that give none: agents need one to say what a result is of."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from plimsoll.core.ids import short_id

__all__ = ["new_call_id", "with_call_ids", "with_stream_call_ids"]

_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def new_call_id() -> str:
    return f"call_{short_id()}"


def with_stream_call_ids(data: bytes, ids: Sequence[str]) -> bytes:
    """A piece of a stream, with these ids in its tool calls; an empty one is left out."""
    body = _object.decode(data)
    body["choices"] = with_call_ids(body["choices"], "delta", ids)
    return msgspec.json.encode(body)


def with_call_ids(
    choices: msgspec.Raw, said: Literal["message", "delta"], ids: Sequence[str]
) -> msgspec.Raw:
    """The choices of an answer, with these ids in the tool calls of the first."""
    listed = _list.decode(choices)
    message = _object.decode(listed[0][said])
    calls = _list.decode(message["tool_calls"])
    for call, id in zip(calls, ids, strict=True):
        if id:
            call["id"] = _raw(id)
    message["tool_calls"] = _raw(calls)
    listed[0][said] = _raw(message)
    return _raw(listed)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
