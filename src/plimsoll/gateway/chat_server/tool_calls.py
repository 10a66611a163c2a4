"""Tool calls in the text of an answer, written as <tool_call>{JSON}</tool_call>.

A chat template renders a call that an agent sends back in its own layout, which may differ from the
model's. `AnswerTexts` restores the model's text where an agent sends an answer back unchanged, so
that the model sees the same tokens again.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.upstreams.answers import new_call_id
from plimsoll.trajectories.messages import json_digest

__all__ = ["OPENING_TAG", "AnswerTexts", "ParsedCall", "StreamedText", "read_calls"]

OPENING_TAG = "<tool_call>"
CALL_PATTERN = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_written = msgspec.json.Decoder(_Written)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str
    """The JSON as the model wrote it."""

    def to_wire(self, index: int | None = None) -> dict[str, object]:
        function = {"name": self.name, "arguments": self.arguments}
        call: dict[str, object] = {"id": self.id, "type": "function", "function": function}
        return call if index is None else {"index": index, **call}


def read_calls(text: str) -> tuple[str, list[ParsedCall]]:
    """The text before the calls, and the calls. If a call cannot be parsed, everything is text."""
    before, opens, rest = text.partition(OPENING_TAG)
    if not opens:
        return text, []
    try:
        calls = [_call(found) for found in CALL_PATTERN.findall(opens + rest)]
    except DECODE_ERRORS:
        return text, []
    return before, calls


def _call(found: str) -> ParsedCall:
    written = _written.decode(found.strip().encode())
    arguments = bytes(written.arguments).decode()
    if arguments.startswith('"'):  # some models write the arguments as a JSON string
        arguments = msgspec.json.decode(arguments, type=str)
    return ParsedCall(new_call_id(), written.name, arguments)


class StreamedText:
    """A streamed answer: passes on plain text at once, and holds back the beginning of
    a possible tool call."""

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._pieces: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self._pieces)

    def add(self, text: str) -> str:
        if not self._tools:
            return text
        self._pieces.append(text)
        text = self._held + text
        at = text.find(OPENING_TAG)
        if at < 0:
            at = len(text) - _partial_tag_length(text)
        self._held = text[at:]
        return text[:at]

    def end(self) -> tuple[str, list[ParsedCall]]:
        """The held-back rest: text that turned out not to be a call, and the calls."""
        return read_calls(self._held) if self._tools else ("", [])


def _partial_tag_length(text: str) -> int:
    """The number of characters at the end that may be the beginning of an opening tag."""
    lengths = range(min(len(OPENING_TAG) - 1, len(text)), 0, -1)
    return next((size for size in lengths if text.endswith(OPENING_TAG[:size])), 0)


MAX_CHARACTERS = 16_000_000
"""The total size of the stored answers."""


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class AnswerTexts:
    """The texts of recent answers with tool calls, by the id of their first call."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._characters = 0

    def add(self, text: str, calls: Sequence[ParsedCall]) -> None:
        call_fields = [(call.id, call.name, call.arguments) for call in calls]
        self._texts[calls[0].id] = text, _calls_digest(call_fields)
        self._characters += len(text)
        while self._characters > MAX_CHARACTERS and len(self._texts) > 1:
            self._characters -= len(self._texts.popitem(last=False)[1][0])

    def restore(self, messages: list[dict[str, object]]) -> list[dict[str, object]]:
        """The messages, with the model's own text for answers that came back unchanged."""
        return [self._restore_message(message) if self._texts else message for message in messages]

    def _restore_message(self, message: dict[str, object]) -> dict[str, object]:
        if message.get("role") != "assistant" or not message.get("tool_calls"):
            return message
        try:
            calls = msgspec.convert(message["tool_calls"], list[_Call])
        except msgspec.ValidationError:
            return message
        text, digest = self._texts.get(calls[0].id, ("", b""))
        call_fields = [(call.id, call.function.name, call.function.arguments) for call in calls]
        content = cast(object, message.get("content")) or ""
        before = text.partition(OPENING_TAG)[0]
        if not isinstance(content, str) or content.strip() != before.strip():
            return message
        return (
            {"role": "assistant", "content": text}
            if _calls_digest(call_fields) == digest
            else message
        )


def _calls_digest(calls: Sequence[tuple[str, str, str]]) -> bytes:
    return b"".join(
        b"%s %s %s" % (id.encode(), name.encode(), json_digest(arguments))
        for id, name, arguments in calls
    )
