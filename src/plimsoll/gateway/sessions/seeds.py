"""Sampling seeds of a session, for reproducible trials."""

import hashlib

__all__ = ["Seeds"]

_BITS = 31
"""The number of bits that every server accepts."""


class Seeds:
    """A seed for each request of a session, in order.

    It depends only on the name and the number of earlier requests, so a trial that is repeated
    under the same name samples with the same seeds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._requests = 0

    def next(self) -> int:
        text = f"{self._name} {self._requests}".encode()
        self._requests += 1
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> (64 - _BITS)
