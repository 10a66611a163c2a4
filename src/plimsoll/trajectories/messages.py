"""Messages in the internal form, and their identity.

Two messages are equal if they have the same role, text, images, calls and answered call. Agents
that send an answer back may drop its reasoning, re-encode its arguments, split its text into parts,
or strip blanks: none of that makes another message. The identity says nothing about tokens; those
are compared themselves.
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
    "ToolCall",
    "json_digest",
    "message_digest",
    "path_digest",
    "raw_key",
]

Role = Literal["system", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class Image(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    """An image by its URL: `data:`, `https:`, or `blob:` for a stored image."""

    url: str


class Other(msgspec.Struct, frozen=True, tag_field="type", tag="other"):
    """A part that is only forwarded: audio, a file."""

    value: msgspec.Raw


Part = Text | Image | Other


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call of the policy."""

    id: str
    name: str
    arguments: str
    """The text that the policy wrote; usually JSON."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """The call that a tool message answers."""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


_SIZE = 16


def _number(literal: str) -> float | int:
    # A client written in JavaScript sends 1.0 back as 1.
    number = float(literal)
    return int(number) if number.is_integer() else number


_decoder = msgspec.json.Decoder(float_hook=_number)
_encoder = msgspec.json.Encoder(order="sorted")


def raw_key(data: bytes | memoryview | msgspec.Raw) -> bytes:
    """Equal for equal bytes. SHA-256, because processors have instructions for it."""
    return hashlib.sha256(data).digest()[:_SIZE]


def json_digest(data: bytes | str | msgspec.Raw) -> bytes:
    """Equal for equivalent JSON; for other data, equal for equal bytes."""
    return hashlib.sha256(_canonical(data)).digest()[:_SIZE]


def path_digest(parent: bytes, message: bytes) -> bytes:
    """The identity of a message and all before it."""
    return hashlib.sha256(parent + message).digest()[:_SIZE]


def message_digest(message: Message) -> bytes:
    """The identity of a message."""
    # Some agents strip an answer before they send it back.
    text = message.text.strip() if message.role == "assistant" else message.text
    fields = [message.role.encode(), text.encode(), message.call_id.encode()]
    for part in message.parts:
        if isinstance(part, Image):
            fields += [b"image", part.url.encode()]
        elif isinstance(part, Other):
            fields += [b"other", _canonical(part.value)]
    for call in message.calls:
        fields += [b"call", call.id.encode(), call.name.encode(), _arguments(call.arguments)]
    # The lengths come first, so that fields cannot run into each other.
    lengths = ",".join([str(len(field)) for field in fields]).encode()
    return hashlib.sha256(b"".join((lengths, *fields))).digest()[:_SIZE]


def _arguments(arguments: str) -> bytes:
    return _canonical(arguments) if arguments.strip() else b"{}"


def _canonical(data: bytes | str | msgspec.Raw) -> bytes:
    try:
        return _encoder.encode(_decoder.decode(data))
    except DECODE_ERRORS:
        return data.encode() if isinstance(data, str) else bytes(data)
