"""The address of an upstream, as people write it."""

from urllib.parse import urlsplit

from plimsoll.core.errors import UsageError

__all__ = ["normal_url"]


def normal_url(given: str) -> str:
    """The base of the server's routes; `/v1` is added where there is no path."""
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        usable = secret = False
    else:
        if secret:
            raise UsageError("the policy's URL holds a name or a password; give the key by itself")
    if not usable:
        raise UsageError(f"{given} is no URL of a policy; it looks like http://HOST:PORT/v1")
    base = given.rstrip("/")
    return base if urlsplit(base).path else f"{base}/v1"
