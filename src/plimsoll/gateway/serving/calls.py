"""Finds the tool calls of an answer, where they are written as <tool_call>{JSON}</tool_call>."""

import re
from dataclasses import dataclass

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.gateway.upstreams.call_ids import new_call_id

__all__ = ["OPENS", "Called", "Speech", "read_calls"]

OPENS = "<tool_call>"
CALLS = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_written = msgspec.json.Decoder(_Written)


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str
    """The JSON as the model wrote it."""

    def wire(self, index: int | None = None) -> dict[str, object]:
        function = {"name": self.name, "arguments": self.arguments}
        call: dict[str, object] = {"id": self.id, "type": "function", "function": function}
        return call if index is None else {"index": index, **call}


def read_calls(text: str) -> tuple[str, list[Called]]:
    """The text before the calls, and they. A call that cannot be read leaves all of it text."""
    before, opens, rest = text.partition(OPENS)
    if not opens:
        return text, []
    try:
        calls = [_call(found) for found in CALLS.findall(opens + rest)]
    except UNREADABLE:
        return text, []
    return before, calls


def _call(found: str) -> Called:
    written = _written.decode(found.strip().encode())
    arguments = bytes(written.arguments).decode()
    if arguments.startswith('"'):  # some write the JSON of the arguments as a text
        arguments = msgspec.json.decode(arguments, type=str)
    return Called(new_call_id(), written.name, arguments)


class Speech:
    """An answer as it comes: says what of it is text for sure, and keeps back what may be calls."""

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._heard: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """All that was heard."""
        return "".join(self._heard)

    def hear(self, text: str) -> str:
        if not self._tools:
            return text
        self._heard.append(text)
        text = self._held + text
        at = text.find(OPENS)
        if at < 0:
            at = len(text) - _begun(text)
        self._held = text[at:]
        return text[:at]

    def end(self) -> tuple[str, list[Called]]:
        """What was kept back: text that was no call after all, and calls."""
        return read_calls(self._held) if self._tools else ("", [])


def _begun(text: str) -> int:
    """How many letters at the end may be the beginning of a call."""
    lengths = range(min(len(OPENS) - 1, len(text)), 0, -1)
    return next((size for size in lengths if text.endswith(OPENS[:size])), 0)
