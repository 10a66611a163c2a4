"""Answers as Anthropic's Messages has them: blocks, a reason to stop, usage."""

from typing import Any

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.gateway.dialects.encoding import encode, sendable_arguments
from plimsoll.gateway.forms import Answer, Request, Usage
from plimsoll.trajectories.records import Finish

__all__ = ["SIGNATURE", "blocks", "chunk_stop_word", "stop", "stop_word", "usage_of"]

SIGNATURE = "plimsoll"
"""Clients want a signature with every thought, and send it back. Nothing here depends on it."""

_REASONS: dict[Finish, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refused": "refusal",
}


class _Choice(msgspec.Struct):
    stop_reason: int | str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []


_BODY = msgspec.json.Decoder(_Body)


def blocks(request: Request, answer: Answer) -> list[dict[str, Any]]:
    """The content of a whole answer."""
    message = answer.message
    content: list[dict[str, Any]] = []
    if message.reasoning and request.wants_reasoning:
        thought = {"type": "thinking", "thinking": message.reasoning, "signature": SIGNATURE}
        content.append(thought)
    if message.text:
        content.append({"type": "text", "text": message.text})
    for call in message.calls:
        given = msgspec.Raw(sendable_arguments(call.arguments).encode())
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return content


def stop(answer: Answer, word: str | None) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`; `word` is the stop sequence that was met."""
    if word is not None and answer.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": word}
    # Some servers end an answer that makes calls with a plain stop.
    finish = "tool_calls" if answer.message.calls and answer.finish == "stop" else answer.finish
    return {"stop_reason": _REASONS[finish], "stop_sequence": None}


def stop_word(request: Request, answer: Answer) -> str | None:
    """The stop sequence that ended a whole answer, where the upstream says which."""
    if answer.raw is None or "stop" not in request.settings:
        return None
    return chunk_stop_word(request, encode({"choices": answer.raw.get("choices")}))


def chunk_stop_word(request: Request, data: bytes) -> str | None:
    """The same for the last piece of a stream."""
    if "stop" not in request.settings:
        return None
    try:
        choices = _BODY.decode(data).choices
    except UNREADABLE:
        return None
    reason = choices[0].stop_reason if choices else None
    return reason if isinstance(reason, str) else None


def usage_of(usage: Usage | None) -> dict[str, Any]:
    counted = usage or Usage(0, 0)
    return {
        "input_tokens": max(0, counted.prompt - counted.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counted.cached,
        "output_tokens": counted.answer,
    }
