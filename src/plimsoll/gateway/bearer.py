"""The key that a request carries."""

from aiohttp import hdrs, web

__all__ = ["key_of"]


def key_of(http: web.BaseRequest) -> str:
    """As OpenAI's clients send it or as Anthropic's do; "" where there is none."""
    bearer = http.headers.get(hdrs.AUTHORIZATION, "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return http.headers.get("x-api-key", "").strip()
