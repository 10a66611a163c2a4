"""Secret keys: made here, kept as digests, compared in constant time."""

import hashlib
import hmac
import secrets

__all__ = ["digest_of", "matches", "new_key"]


def new_key() -> str:
    """A key that nobody guesses; its prefix lets scanners for leaked secrets know it."""
    return f"sk-plimsoll-{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def matches(key: str, digest: bytes) -> bool:
    return hmac.compare_digest(digest_of(key), digest)
