"""When two messages are the same, as sixteen bytes.

Role, text, images, calls and the call that is answered make a message. Reasoning, the cut of
a text into parts, the layout and order of arguments, and blanks around an answer do not: an
agent that sends an answer back changes them, and has not said anything else by it. Whether
the policy's tokens are the same too is never concluded from this; tokens are compared.
"""

import hashlib

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.trajectories.messages import Image, Message, Other

__all__ = ["json_digest", "message_digest", "path_digest", "raw_key"]

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
    except UNREADABLE:
        return data.encode() if isinstance(data, str) else bytes(data)
