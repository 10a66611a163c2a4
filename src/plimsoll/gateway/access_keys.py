"""Access keys: generated here, stored as digests, compared in constant time."""

import hashlib
import hmac
import secrets

from aiohttp import hdrs, web

__all__ = ["key_digest", "matches", "new_key", "request_key"]


def request_key(http: web.BaseRequest) -> str:
    """The key of a request, from OpenAI's or Anthropic's header; "" if it has none."""
    bearer = http.headers.get(hdrs.AUTHORIZATION, "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return http.headers.get("x-api-key", "").strip()


def new_key() -> str:
    """A new random key. Its prefix is recognizable to scanners for leaked secrets."""
    return f"sk-plimsoll-{secrets.token_urlsafe(32)}"


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def matches(key: str, digest: bytes) -> bool:
    return hmac.compare_digest(key_digest(key), digest)
