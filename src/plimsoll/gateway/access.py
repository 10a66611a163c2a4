"""Access to the policy: the address, key and model name of an agent, and the check of keys."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from aiohttp import hdrs, web

__all__ = ["Access", "key_digest", "matches", "new_key", "request_key"]


@dataclass(frozen=True, slots=True)
class Access:
    """The address and key of a session, as seen from the agent's sandbox."""

    root: str
    """`http://HOST:PORT/s/SESSION`, the base URL for Anthropic's clients."""
    key: str = field(repr=False)
    model: str
    """The model name to request. The gateway forwards every name to the same policy."""

    @property
    def openai(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.root}/v1"

    @property
    def anthropic(self) -> str:
        return self.root


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
