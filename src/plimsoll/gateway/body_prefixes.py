"""What a session remembers of the bodies that it has read, so as not to read it again.

An agent sends its whole conversation in every turn: a body begins with the bytes of the one
before, up to its last message. Of such a beginning nothing is kept but fingerprints, so that no
body outlives its request.
"""

from collections import deque
from typing import NamedTuple

import msgspec

__all__ = ["BodyPrefix", "BodyPrefixes", "Fingerprint"]

BLOCK_BYTES = 1 << 14
MAX_PREFIXES = 4
"""Conversations that an agent may hold in turn without any of it being read twice."""


class Fingerprint(NamedTuple):
    """Equal for the same bytes. The hashes are keyed anew in every process."""

    size: int
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, body: bytes) -> "Fingerprint":
        return cls(len(body), _hashes(body, 0, len(body)))

    def of_beginning(self, body: bytes, size: int) -> "Fingerprint":
        """That of the first bytes of the body whose fingerprint this is."""
        whole = size // BLOCK_BYTES
        return Fingerprint(size, self.blocks[:whole] + _hashes(body, whole * BLOCK_BYTES, size))


def _hashes(body: bytes, start: int, end: int) -> tuple[int, ...]:
    # A view of a part would be hashed together with the whole: that is how views are hashed.
    return tuple(
        [hash(body[at : min(at + BLOCK_BYTES, end)]) for at in range(start, end, BLOCK_BYTES)]
    )


class BodyPrefix(msgspec.Struct, frozen=True):
    """A body from its beginning to its last message, as what was read there."""

    start: int
    """Where the array of messages begins."""
    size: int
    """Where its last message ends."""
    fields: dict[str, msgspec.Raw]
    """What stands before the messages. Copies: what is cut out of a body keeps all of it."""
    keys: tuple[bytes, ...]
    """The key of each message."""


class BodyPrefixes:
    """The beginnings of a session's latest bodies."""

    def __init__(self) -> None:
        self._known: deque[tuple[Fingerprint, BodyPrefix]] = deque(maxlen=MAX_PREFIXES)

    def find(self, body: bytes, print: Fingerprint) -> BodyPrefix | None:
        """The longest that the body begins with, and goes on after with the next message."""
        longest: BodyPrefix | None = None
        for known, opening in self._known:
            size = opening.size
            if (
                (longest is None or size > longest.size)
                and size < print.size
                and body[size] in b",]"
                and known.blocks[:-1] == print.blocks[: len(known.blocks) - 1]
                and known == print.of_beginning(body, size)
            ):
                longest = opening
        return longest

    def add(
        self, body: bytes, print: Fingerprint, opening: BodyPrefix, instead: BodyPrefix | None
    ) -> None:
        """Remember how a body begins, `instead` of what it goes on from."""
        kept = [each for each in self._known if each[1] is not instead]
        self._known.clear()
        self._known.extend(kept)
        self._known.append((print.of_beginning(body, opening.size), opening))
