"""Body prefixes: the parsed beginnings of a session's recent request bodies.

An agent sends its whole conversation in every turn, so a body begins with the bytes of the previous
one, up to its last message. Only fingerprints of these bytes are stored, so no body outlives its
request.
"""

from collections import deque
from typing import NamedTuple

import msgspec

__all__ = ["BodyPrefix", "BodyPrefixes", "Fingerprint"]

BLOCK_BYTES = 1 << 14
MAX_PREFIXES = 4
"""The number of interleaved conversations of an agent that are each parsed only once."""


class Fingerprint(NamedTuple):
    """A hash of a body, equal for equal bytes. The hashes are keyed per process."""

    size: int
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, body: bytes) -> "Fingerprint":
        return cls(len(body), _hashes(body, 0, len(body)))

    def of_prefix(self, body: bytes, size: int) -> "Fingerprint":
        """The fingerprint of the first `size` bytes of the same body."""
        full_blocks = size // BLOCK_BYTES
        return Fingerprint(
            size, self.blocks[:full_blocks] + _hashes(body, full_blocks * BLOCK_BYTES, size)
        )


def _hashes(body: bytes, start: int, end: int) -> tuple[int, ...]:
    # Slices, not memory views: hashing a view of a slice hashes the whole underlying buffer.
    return tuple(
        [hash(body[at : min(at + BLOCK_BYTES, end)]) for at in range(start, end, BLOCK_BYTES)]
    )


class BodyPrefix(msgspec.Struct, frozen=True):
    """The parsed beginning of a body, up to the end of its last message."""

    start: int
    """The offset of the array of messages."""
    size: int
    """The offset after the last message."""
    fields: dict[str, msgspec.Raw]
    """The fields before the messages, as copies: a slice would keep the whole body alive."""
    keys: tuple[bytes, ...]
    """The key of each message."""


class BodyPrefixes:
    """The prefixes of a session's latest bodies."""

    def __init__(self) -> None:
        self._prefixes: deque[tuple[Fingerprint, BodyPrefix]] = deque(maxlen=MAX_PREFIXES)

    def find(self, body: bytes, fingerprint: Fingerprint) -> BodyPrefix | None:
        """The longest stored prefix that the body continues with another message."""
        longest: BodyPrefix | None = None
        for stored, prefix in self._prefixes:
            size = prefix.size
            if (
                (longest is None or size > longest.size)
                and size < fingerprint.size
                and body[size] in b",]"
                and stored.blocks[:-1] == fingerprint.blocks[: len(stored.blocks) - 1]
                and stored == fingerprint.of_prefix(body, size)
            ):
                longest = prefix
        return longest

    def add(
        self, body: bytes, fingerprint: Fingerprint, prefix: BodyPrefix, replaced: BodyPrefix | None
    ) -> None:
        """Store the prefix of a body; `replaced` is the shorter prefix that it replaces."""
        others = [entry for entry in self._prefixes if entry[1] is not replaced]
        self._prefixes.clear()
        self._prefixes.extend(others)
        self._prefixes.append((fingerprint.of_prefix(body, prefix.size), prefix))
