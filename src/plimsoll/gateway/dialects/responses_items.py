"""Output items of the Responses dialect, and their ids.

The ids name the answer that items belong to. An agent that sends its history back sends them
too, so that the items of one answer become one message again, and those of two answers two.
"""

from collections.abc import Mapping
from secrets import token_hex

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.gateway.dialects.encoding import encode
from plimsoll.gateway.dialects.responses_tools import Offer
from plimsoll.trajectories.messages import ToolCall

__all__ = [
    "Item",
    "call_item",
    "custom_arguments",
    "item_id",
    "message_item",
    "new_turn",
    "reasoning_item",
    "summary_part",
    "text_part",
    "turn_of",
]

Item = dict[str, object]

_HEX = 24

_UNREAD = "ctr"
"""The ids of calls of freeform tools whose arguments are not what was asked for. The tool is
given them as they are: its own complaint is what the policy learns from. When the call comes
back, its text is the arguments again."""


def new_turn() -> str:
    return token_hex(_HEX // 2)


def item_id(prefix: str, turn: str, number: int) -> str:
    return f"{prefix}_{turn}_{number}"


def turn_of(id: str) -> str:
    """The answer that an item belongs to; empty where the id is not one of ours."""
    pieces = id.split("_")
    return pieces[1] if len(pieces) == 3 and len(pieces[1]) == _HEX else ""


def summary_part(text: str) -> Item:
    return {"type": "summary_text", "text": text}


def text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": []}


def reasoning_item(id: str, text: str, sealed: bool) -> Item:
    """Reasoning, in the field that agents send back whatever they think of it."""
    summary = [summary_part(text)] if text else []
    item: Item = {"id": id, "type": "reasoning", "summary": summary}
    if sealed:
        # Agents that asked for it send the item back only where it is there.
        item["encrypted_content"] = "summary"
    return item


def message_item(id: str, text: str | None, status: str) -> Item:
    """A message; without a text where it has only begun."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text)],
    }


def call_item(
    turn: str, number: int, call: ToolCall, status: str, offers: Mapping[str, Offer]
) -> Item:
    """A call, as one of the tool that the agent offered; of an unknown tool, a function's."""
    offer = offers.get(call.name) or Offer("function", call.name)
    item: Item = {
        "id": item_id("fc", turn, number),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
    }
    match offer.kind:
        case "custom":
            text = _text(call.arguments)
            prefix = _UNREAD if text is None else "ctc"
            item["id"] = item_id(prefix, turn, number)
            item["type"] = "custom_tool_call"
            item["input"] = call.arguments if text is None else text
        case "local_shell" if (action := _action(call.arguments)) is not None:
            return item | {"type": "local_shell_call", "action": action}
        case _:
            item["arguments"] = call.arguments
    item["name"] = offer.name
    if offer.namespace is not None:
        item["namespace"] = offer.namespace
    return item


def custom_arguments(id: str, text: str) -> str:
    """What the policy wrote to call a freeform tool, from the item that it became."""
    if id.startswith(_UNREAD) and turn_of(id):
        return text
    return encode({"input": text}).decode()


class _Text(msgspec.Struct, forbid_unknown_fields=True):
    input: str


class _Action(msgspec.Struct, forbid_unknown_fields=True):
    command: list[str]
    working_directory: str | msgspec.UnsetType = msgspec.UNSET
    timeout_ms: int | msgspec.UnsetType = msgspec.UNSET


def _text(arguments: str) -> str | None:
    try:
        return msgspec.json.decode(arguments, type=_Text).input
    except UNREADABLE:
        return None


def _action(arguments: str) -> Item | None:
    try:
        action = msgspec.json.decode(arguments, type=_Action)
    except UNREADABLE:
        return None
    return {"type": "exec", "env": {}} | msgspec.to_builtins(action)
