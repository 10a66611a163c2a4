"""Messages in the one form that every dialect is translated to, and when two are the same.

Two messages are the same where they say the same, however a client writes them down: an agent
that sends an answer back drops its reasoning, reorders the keys of arguments, splits a text
into parts or marks it for a cache. None of that makes another message.
"""

from typing import Literal

import msgspec

__all__ = ["Image", "Message", "Other", "Part", "Role", "Text", "Tool", "ToolCall"]

Role = Literal["system", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class Image(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """An image, by its address: `data:`, `https:`, or `blob:` where the store keeps it."""

    url: str


class Other(msgspec.Struct, frozen=True, tag_field="type", tag="other"):
    """A part of a kind that is only passed on, as it came: audio, a file."""

    value: msgspec.Raw


Part = Text | Image | Other


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the policy made."""

    id: str
    name: str
    arguments: str
    """As the policy wrote them: JSON, if it did not err."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of a tool's message: the call that it answers."""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class Tool(msgspec.Struct, frozen=True):
    """A function that the policy may call."""

    name: str
    description: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
