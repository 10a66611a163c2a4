"""The token ids of a conversation in memory: each exchange holds what it adds to its parent.

Ids are compared as text, each followed by a comma. Inference servers send them as JSON, and of a
prompt with tens of thousands of ids only the part after its parent's is ever parsed.
"""

import sys

import msgspec

__all__ = ["CommonPrefix", "TokenSequence", "ids_of_text", "text_of_ids"]

_ids = msgspec.json.Decoder(list[int])
_encode = msgspec.json.Encoder().encode


def text_of_ids(ids: list[int] | msgspec.Raw) -> bytes:
    """The ids as text. Raises `msgspec.DecodeError` for JSON that is not a list of numbers."""
    array = memoryview(_encode(ids) if isinstance(ids, list) else ids)
    text = b"".join((array[1:-1], b",")) if len(array) > 2 else b""
    if b" " in text or b"\n" in text or bytes(array[:1]) != b"[":
        return text_of_ids(_ids.decode(array))
    return text


def ids_of_text(text: bytes) -> list[int]:
    """The ids of a text. Raises `msgspec.DecodeError` if it is not a list of numbers."""
    return _ids.decode(b"[" + text[:-1] + b"]")


class CommonPrefix(msgspec.Struct, frozen=True):
    """The length of the common prefix of a prompt and a sequence, in ids and in bytes of text."""

    ids: int = 0
    bytes: int = 0


class TokenSequence:
    """The ids of an exchange: prompt and answer."""

    __slots__ = ("_answer", "_length", "_parent", "_prompt", "_shared_bytes")

    def __init__(
        self,
        parent: "TokenSequence | None",
        shared_bytes: int,
        prompt: bytes,
        answer: bytes,
        length: int,
    ) -> None:
        self._parent = parent
        self._shared_bytes = shared_bytes
        """The number of bytes of the parent's text that it begins with."""
        self._prompt = prompt
        self._answer = answer
        self._length = length

    def __len__(self) -> int:
        return self._length

    def common(self, text: bytes) -> CommonPrefix:
        """The common prefix of `text` and these ids."""
        at = 0
        for piece in self._pieces():
            if not text.startswith(piece, at):
                at += _common_length(text[at : at + len(piece)], piece)
                # Different ids may begin with the same digits.
                end = text.rfind(b",", 0, at) + 1
                return CommonPrefix(text.count(b",", 0, end), end)
            at += len(piece)
        return CommonPrefix(self._length, at)

    def _pieces(self) -> list[bytes]:
        pieces: list[bytes] = []
        sequence: TokenSequence | None = self
        limit = sys.maxsize
        while sequence is not None and limit > 0:
            own = limit - sequence._shared_bytes
            if own > 0:
                pieces.append(sequence._answer[: max(own - len(sequence._prompt), 0)])
                pieces.append(sequence._prompt[:own])
            limit = min(limit, sequence._shared_bytes)
            sequence = sequence._parent
        pieces.reverse()
        return pieces


def _common_length(left: bytes, right: bytes) -> int:
    """The length of the longest common prefix, by binary search."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
