"""Answers of the Responses dialect: the response object, and an answer's items in it."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from plimsoll.gateway.dialects.responses_items import (
    Item,
    call_item,
    item_id,
    message_item,
    new_turn,
    reasoning_item,
)
from plimsoll.gateway.dialects.responses_tools import Offer
from plimsoll.gateway.forms import Answer, Request, Usage
from plimsoll.trajectories.messages import ToolCall
from plimsoll.trajectories.records import Finish

__all__ = ["Frame", "ResponsesRequest", "item_status", "named_call", "output_of"]

_INCOMPLETE: dict[Finish, str] = {"length": "max_output_tokens", "refused": "content_filter"}


class ResponsesRequest(Request, kw_only=True):
    """A request, with what its answer has to say of it."""

    turn: str = msgspec.field(default_factory=new_turn)
    """Names the answer, however often it is written."""
    offers: dict[str, Offer] = msgspec.field(default_factory=dict[str, Offer])
    """What each function of the policy is to the agent."""
    sealed: bool = False
    """Whether the agent asked for reasoning in a form that only the server can read."""
    echoed: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    """Fields that the answer repeats."""


class Frame:
    """The response object of one answer; its id stays the same in everything that is sent."""

    def __init__(self, request: Request) -> None:
        known = request if isinstance(request, ResponsesRequest) else None
        self.turn = known.turn if known else new_turn()
        self.offers: Mapping[str, Offer] = known.offers if known else {}
        self.sealed = known is not None and known.sealed
        self._fields: Item = {
            "id": f"resp_{self.turn}",
            "object": "response",
            "created_at": int(time.time()),
            "model": request.model,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            # Not repeated: they are most of a request, and no agent reads them here.
            "tools": [],
            "instructions": None,
            "metadata": {},
            "store": False,
            **(known.echoed if known else {}),
        }

    def begun(self) -> Item:
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
    """A call with an id: an agent cannot answer one without."""
    return call if call.id else msgspec.structs.replace(call, id=f"call_{turn}_{index}")


def output_of(answer: Answer, frame: Frame) -> list[Item]:
    """All items of a whole answer."""
    message, turn, status = answer.message, frame.turn, item_status(answer)
    items: list[Item] = []
    if message.reasoning:
        items.append(reasoning_item(item_id("rs", turn, 0), message.reasoning, frame.sealed))
    if message.text or not message.calls:
        items.append(message_item(item_id("msg", turn, len(items)), message.text, status))
    for index, call in enumerate(message.calls):
        named = named_call(call, turn, index)
        items.append(call_item(turn, len(items), named, status, frame.offers))
    return items


def _usage(usage: Usage) -> Item:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.answer,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.answer,
    }
