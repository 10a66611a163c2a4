"""Answers of the Responses dialect: the response object, its items, and their ids.

The ids identify the answer that an item belongs to. Agents send them back with the history, so that
the items of one answer become one message again.
"""

import time
from collections.abc import Mapping, Sequence
from secrets import token_hex

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.completions import Answer, Request, Usage
from plimsoll.gateway.dialects.encoding import encode
from plimsoll.gateway.dialects.responses.tools import AgentTool
from plimsoll.trajectories.messages import ToolCall
from plimsoll.trajectories.records import Finish

__all__ = [
    "Frame",
    "Item",
    "ResponsesRequest",
    "call_item",
    "custom_arguments",
    "item_id",
    "item_status",
    "message_item",
    "named_call",
    "new_turn",
    "output_of",
    "reasoning_item",
    "summary_part",
    "text_part",
    "turn_of",
]

Item = dict[str, object]

_HEX = 24

_UNREAD = "ctr"
"""The id prefix of calls of freeform tools whose arguments have the wrong form. The tool gets them
unchanged, and the policy learns from the tool's error. When the call comes back, its text is used
as the arguments.
"""


def new_turn() -> str:
    return token_hex(_HEX // 2)


def item_id(prefix: str, turn: str, number: int) -> str:
    return f"{prefix}_{turn}_{number}"


def turn_of(id: str) -> str:
    """The answer that an item belongs to; empty if the id is not from this gateway."""
    pieces = id.split("_")
    return pieces[1] if len(pieces) == 3 and len(pieces[1]) == _HEX else ""


def summary_part(text: str) -> Item:
    return {"type": "summary_text", "text": text}


def text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": []}


def reasoning_item(id: str, text: str, encrypted: bool) -> Item:
    """Reasoning, in the field that all agents send back."""
    summary = [summary_part(text)] if text else []
    item: Item = {"id": id, "type": "reasoning", "summary": summary}
    if encrypted:
        # Agents that asked for it send the item back only if it is present.
        item["encrypted_content"] = "summary"
    return item


def message_item(id: str, text: str | None, status: str) -> Item:
    """A message; `text` is None at its beginning in a stream."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text)],
    }


def call_item(
    turn: str, number: int, call: ToolCall, status: str, agent_tools: Mapping[str, AgentTool]
) -> Item:
    """A call, in the form of the agent's tool; a function call for an unknown tool."""
    agent_tool = agent_tools.get(call.name) or AgentTool("function", call.name)
    item: Item = {
        "id": item_id("fc", turn, number),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
    }
    match agent_tool.kind:
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
    item["name"] = agent_tool.name
    if agent_tool.namespace is not None:
        item["namespace"] = agent_tool.namespace
    return item


def custom_arguments(id: str, text: str) -> str:
    """The policy's arguments of a call of a freeform tool, from its item."""
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
    except DECODE_ERRORS:
        return None


def _action(arguments: str) -> Item | None:
    try:
        action = msgspec.json.decode(arguments, type=_Action)
    except DECODE_ERRORS:
        return None
    return {"type": "exec", "env": {}} | msgspec.to_builtins(action)


_INCOMPLETE: dict[Finish, str] = {"length": "max_output_tokens", "refused": "content_filter"}


class ResponsesRequest(Request, kw_only=True):
    """A request, with the fields needed to write its answer."""

    turn: str = msgspec.field(default_factory=new_turn)
    """Identifies the answer, however often it is written."""
    agent_tools: dict[str, AgentTool] = msgspec.field(default_factory=dict[str, AgentTool])
    """The agent's tool for each function of the policy."""
    encrypted: bool = False
    """Whether the agent asked for encrypted reasoning."""
    echoed: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    """Fields that the answer repeats."""


class Frame:
    """The response object of one answer, with the same id in all of its events."""

    def __init__(self, request: Request) -> None:
        own = request if isinstance(request, ResponsesRequest) else None
        self.turn = own.turn if own else new_turn()
        self.agent_tools: Mapping[str, AgentTool] = own.agent_tools if own else {}
        self.encrypted = own is not None and own.encrypted
        self._fields: Item = {
            "id": f"resp_{self.turn}",
            "object": "response",
            "created_at": int(time.time()),
            "model": request.model,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            # Not repeated: they are most of a request, and agents do not read them here.
            "tools": [],
            "instructions": None,
            "metadata": {},
            "store": False,
            **(own.echoed if own else {}),
        }

    def in_progress(self) -> Item:
        return self._with("in_progress", [])

    def failed(self, error: Item) -> Item:
        return self._with("failed", [], error=error)

    def whole(self, answer: Answer, output: Sequence[Item]) -> Item:
        reason = _INCOMPLETE.get(answer.finish)
        return self._with(
            item_status(answer),
            output,
            incomplete={"reason": reason} if reason else None,
            usage=_usage(answer.usage) if answer.usage else None,
        )

    def _with(
        self,
        status: str,
        output: Sequence[Item],
        *,
        error: Item | None = None,
        incomplete: Item | None = None,
        usage: Item | None = None,
    ) -> Item:
        return self._fields | {
            "status": status,
            "output": output,
            "error": error,
            "incomplete_details": incomplete,
            "usage": usage,
        }


def item_status(answer: Answer) -> str:
    return "incomplete" if answer.finish in _INCOMPLETE else "completed"


def named_call(call: ToolCall, turn: str, index: int) -> ToolCall:
    """A call with an id: an agent cannot answer a call without one."""
    return call if call.id else msgspec.structs.replace(call, id=f"call_{turn}_{index}")


def output_of(answer: Answer, frame: Frame) -> list[Item]:
    """All items of a whole answer."""
    message, turn, status = answer.message, frame.turn, item_status(answer)
    items: list[Item] = []
    if message.reasoning:
        items.append(reasoning_item(item_id("rs", turn, 0), message.reasoning, frame.encrypted))
    if message.text or not message.calls:
        items.append(message_item(item_id("msg", turn, len(items)), message.text, status))
    for index, call in enumerate(message.calls):
        named = named_call(call, turn, index)
        items.append(call_item(turn, len(items), named, status, frame.agent_tools))
    return items


def _usage(usage: Usage) -> Item:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.answer,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.answer,
    }
