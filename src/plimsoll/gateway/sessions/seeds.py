"""What the answers of a session are sampled with, where that is to be the same each time."""

import hashlib

__all__ = ["Seeds"]

_BITS = 31
"""Every server takes that much."""


class Seeds:
    """A seed for each request of a session, in their order.

    It depends on a name and on how many came before alone: a trial that is run again by the same
    name asks with the same seeds, whoever else asks meanwhile.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked = 0

    def next(self) -> int:
        text = f"{self._name} {self._asked}".encode()
        self._asked += 1
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> (64 - _BITS)
