"""The messages of a chat request, of which those that were read before are not read again."""

from collections.abc import Sequence

import msgspec

from plimsoll.gateway.dialects.chat_mending import mended
from plimsoll.gateway.dialects.counts import MOST_MESSAGES, check_count
from plimsoll.gateway.dialects.encoding import (
    chat_to_message,
    decode,
    encode,
    read_object,
)
from plimsoll.gateway.forms import Refusal
from plimsoll.gateway.openings import Opening
from plimsoll.trajectories.identity import raw_key
from plimsoll.trajectories.messages import Message

__all__ = ["ChatBody", "RawHistory", "read_chat_body"]

_MESSAGES = msgspec.json.Decoder(list[msgspec.Raw])

_REST = b'{"messages":['

TRIES = 8
"""Places that may look like the messages before they come. A body that is made of such places
must not hold up everybody: it is read from its beginning in every turn."""


class RawHistory:
    """Messages of a chat request, each read only when somebody asks for it."""

    __slots__ = ("_array", "_keys", "_last")

    def __init__(
        self, array: msgspec.Raw, keys: tuple[bytes, ...], last: Sequence[msgspec.Raw]
    ) -> None:
        self._array = array
        self._keys = keys
        self._last = last
        """The messages that were cut out of the array already: so many at its end."""

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, index: int) -> bytes:
        return self._keys[index]

    def message(self, index: int) -> Message:
        from_end = index - len(self._keys)
        if -from_end > len(self._last):
            self._last = _MESSAGES.decode(self._array)
        return chat_to_message(self._last[from_end], f"messages[{index}]")


class ChatBody(msgspec.Struct, frozen=True):
    """A body, cut into its messages and all other fields."""

    fields: dict[str, msgspec.Raw]
    history: RawHistory
    messages: msgspec.Raw
    """As they are to be sent."""
    opening: Opening | None


def read_chat_body(body: bytes, known: Opening | None) -> ChatBody:
    """Raises `Refusal` for what is no conversation."""
    if known is not None:
        # What fails here is read from the beginning, for an error that names the right place.
        try:
            return _go_on(body, known) or _read(body)
        except Refusal:
            pass
    return _read(body)


def _read(body: bytes) -> ChatBody:
    fields = read_object(body)
    if "messages" not in fields:
        raise Refusal("bad_request", "messages is missing", param="messages")
    before = {name: raw.copy() for name, raw in _until_messages(fields)}
    array = fields.pop("messages")
    messages = decode(array, _MESSAGES, "messages")
    if not messages:
        raise Refusal("bad_request", "messages is empty", param="messages")
    check_count(len(messages), MOST_MESSAGES, "messages")
    keys = tuple(raw_key(message) for message in messages)
    history, sent = RawHistory(array, keys, messages), mended(messages)
    if sent:
        whole = encode([sent.get(index, raw) for index, raw in enumerate(messages)])
        return ChatBody(fields, history, msgspec.Raw(whole), None)
    return ChatBody(fields, history, array, _opening(body, before, array, keys))


def _go_on(body: bytes, known: Opening) -> ChatBody | None:
    """Reads the messages after those that are known; None where that does not go."""
    at = known.size + (body[known.size] == ord(","))
    rest = _REST + body[at:]
    fields = read_object(rest)
    array = fields.pop("messages")
    new = decode(array, _MESSAGES, "messages")
    check_count(len(known.keys) + len(new), MOST_MESSAGES, "messages")
    end = at + len(array) - 2
    is_first = rest.startswith(array, len(_REST) - 1)  # not another field of this name
    if not is_first or bool(new) != (at > known.size) or mended(new):
        return None
    keys = known.keys + tuple(raw_key(message) for message in new)
    messages = msgspec.Raw(memoryview(body)[known.start : end + 1])
    opening = Opening(known.start, end, known.fields, keys)
    return ChatBody({**known.fields, **fields}, RawHistory(messages, keys, new), messages, opening)


def _until_messages(fields: dict[str, msgspec.Raw]) -> list[tuple[str, msgspec.Raw]]:
    names = list(fields)
    return [(name, fields[name]) for name in names[: names.index("messages")]]


def _opening(
    body: bytes, before: dict[str, msgspec.Raw], array: msgspec.Raw, keys: tuple[bytes, ...]
) -> Opening | None:
    """Where the array is in the body is not told by whoever cut it out."""
    start = -1
    for _ in range(TRIES):
        at = body.find(b'"messages"', start + 1)
        start = body.find(b"[", at) if at >= 0 else -1
        if start < 0:
            return None
        if body.startswith(array, start):
            return Opening(start, start + len(array) - 1, before, keys)
    return None
