"""Answers with tool calls, as the model wrote them.

A template writes a call that comes back in its own layout, which need not be the model's. Where an
agent sends an answer back unchanged, the model reads its own words again, and with them the same
tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import msgspec

from plimsoll.gateway.serving.calls import OPENS, Called
from plimsoll.trajectories.identity import json_digest

__all__ = ["Spoken"]

LETTERS = 16_000_000
"""Of answers that are kept."""


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class Spoken:
    """What was said, by the id of its first call."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._letters = 0

    def keep(self, text: str, calls: Sequence[Called]) -> None:
        said = [(call.id, call.name, call.arguments) for call in calls]
        self._kept[calls[0].id] = text, _sameness(said)
        self._letters += len(text)
        while self._letters > LETTERS and len(self._kept) > 1:
            self._letters -= len(self._kept.popitem(last=False)[1][0])

    def restored(self, messages: list[dict[str, object]]) -> list[dict[str, object]]:
        """The messages, with the model's own words where they came back as they were."""
        return [self._own_words(message) if self._kept else message for message in messages]

    def _own_words(self, message: dict[str, object]) -> dict[str, object]:
        if message.get("role") != "assistant" or not message.get("tool_calls"):
            return message
        try:
            calls = msgspec.convert(message["tool_calls"], list[_Call])
        except msgspec.ValidationError:
            return message
        text, same = self._kept.get(calls[0].id, ("", b""))
        said = [(call.id, call.function.name, call.function.arguments) for call in calls]
        content = cast(object, message.get("content")) or ""
        before = text.partition(OPENS)[0]
        if not isinstance(content, str) or content.strip() != before.strip():
            return message
        return {"role": "assistant", "content": text} if _sameness(said) == same else message


def _sameness(calls: Sequence[tuple[str, str, str]]) -> bytes:
    return b"".join(
        b"%s %s %s" % (id.encode(), name.encode(), json_digest(arguments))
        for id, name, arguments in calls
    )
