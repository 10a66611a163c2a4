"""Messages in the one form that every dialect is translated to, and when two are the same.

Two messages are the same where they say the same, however a client writes them down: an agent
that sends an answer back drops its reasoning, reorders the keys of arguments, splits a text
into parts or marks it for a cache. None of that makes another message.

When two messages are the same, as sixteen bytes.

Role, text, images, calls and the call that is answered make a message. Reasoning, the cut of
a text into parts, the layout and order of arguments, and blanks around an answer do not: an
agent that sends an answer back changes them, and has not said anything else by it. Whether
the policy's tokens are the same too is never concluded from this; tokens are compared.
"""

import hashlib
from typing import Literal

import msgspec

from plimsoll.core.text import DECODE_ERRORS

__all__ = [
    "Image",
    "Message",
    "Other",
    "Part",
    "Role",
    "Text",
    "Tool",
    "ToolCall",
    "json_digest",
    "message_digest",
    "path_digest",
    "raw_key",
]

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


_SIZE = 16


def _number(literal: str) -> float | int:
    # A client written in JavaScript sends 1.0 back as 1.
    number = float(literal)
    return int(number) if number.is_integer() else number


_decoder = msgspec.json.Decoder(float_hook=_number)
_encoder = msgspec.json.Encoder(order="sorted")


def raw_key(data: bytes | memoryview | msgspec.Raw) -> bytes:
    """Equal where the bytes are. SHA-256, since processors have instructions for it."""
    return hashlib.sha256(data).digest()[:_SIZE]


def json_digest(data: bytes | str | msgspec.Raw) -> bytes:
    """Equal where the JSON says the same; of what is not JSON, where the bytes are equal."""
    return hashlib.sha256(_canonical(data)).digest()[:_SIZE]


def path_digest(parent: bytes, message: bytes) -> bytes:
    """The identity of a message and all before it."""
    return hashlib.sha256(parent + message).digest()[:_SIZE]


def message_digest(message: Message) -> bytes:
    """The identity of a message by itself."""
    # Blanks around an answer are stripped by some agents before they send it back.
    text = message.text.strip() if message.role == "assistant" else message.text
    fields = [message.role.encode(), text.encode(), message.call_id.encode()]
    for part in message.parts:
        if isinstance(part, Image):
            fields += [b"image", part.url.encode()]
        elif isinstance(part, Other):
            fields += [b"other", _canonical(part.value)]
    for call in message.calls:
        fields += [b"call", call.id.encode(), call.name.encode(), _arguments(call.arguments)]
    # The lengths come first, so that nothing in one field reads as the beginning of the next.
    lengths = ",".join([str(len(field)) for field in fields]).encode()
    return hashlib.sha256(b"".join((lengths, *fields))).digest()[:_SIZE]


def _arguments(arguments: str) -> bytes:
    return _canonical(arguments) if arguments.strip() else b"{}"


def _canonical(data: bytes | str | msgspec.Raw) -> bytes:
    try:
        return _encoder.encode(_decoder.decode(data))
    except DECODE_ERRORS:
        return data.encode() if isinstance(data, str) else bytes(data)
