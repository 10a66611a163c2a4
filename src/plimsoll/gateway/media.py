"""Media checks: the URLs in a request that the policy's server would open.

A server fetches the URLs it is given and may open file paths too, from its own network and with its
own rights. An agent must not choose them.
"""

import re
from typing import Any, cast

import msgspec

from plimsoll.gateway.completions import History, Refusal
from plimsoll.gateway.media_hosts import MediaHosts
from plimsoll.trajectories.messages import Image, Message, Other, Text

__all__ = ["CheckedHistory", "check_media"]

_SCHEME = re.compile(r"[\x00-\x20]*[A-Za-z][A-Za-z0-9+.\-]*:|[\x00-\x20]*[/\\]{2}")
_TEXTS = frozenset({"text", "refusal", "thinking", "reasoning", "summary"})
"""Keys of a part whose strings are plain text that servers never open."""
_BASE64 = frozenset({"data", "file_data"})
"""Keys of inline content. Base64 has no colon, but may begin with two slashes."""
_TENSORS = frozenset({"audio_embeds", "image_embeds", "image_pil", "prompt_embeds"})
"""Keys that a server unpickles, or treats as an object of its own."""
_SHOWN = 100


class CheckedHistory:
    """A history that checks each message when it is read. Messages that the session has seen before
    were checked then."""

    __slots__ = ("_history", "_hosts")

    def __init__(self, history: History, hosts: MediaHosts) -> None:
        self._history = history
        self._hosts = hosts

    def __len__(self) -> int:
        return len(self._history)

    def key(self, index: int) -> bytes:
        return self._history.key(index)

    def message(self, index: int) -> Message:
        message = self._history.message(index)
        check_media(message, self._hosts)
        return message


def check_media(message: Message, hosts: MediaHosts) -> None:
    """Raise `Refusal` if a part names a host that is not allowed, or a file."""
    for part in message.parts:
        match part:
            case Text():
                pass
            case Image(url):
                _check(url, hosts)
            case Other(value):
                _check_part(value, hosts)


def _check_part(raw: msgspec.Raw, hosts: MediaHosts) -> None:
    """Check every string of a part that is forwarded unchanged."""
    stack: list[tuple[str, Any]] = [("", msgspec.json.decode(raw))]
    while stack:
        name, value = stack.pop()
        if name in _TENSORS and value is not None:
            raise Refusal("unsupported", f"{name}: tensors are not forwarded; remove this field")
        if isinstance(value, dict):
            stack += cast(dict[str, Any], value).items()
        elif isinstance(value, list):
            stack += [(name, item) for item in cast(list[Any], value)]
        elif isinstance(value, str) and _is_address(name, value):
            _check(value, hosts)


def _is_address(name: str, value: str) -> bool:
    if name in _TEXTS:
        return False
    if name in _BASE64:
        return ":" in value[:_SHOWN]
    return name.endswith("url") or _SCHEME.match(value) is not None


def _check(url: str, hosts: MediaHosts) -> None:
    if hosts.allow(url):
        return
    quoted = url if len(url) <= _SHOWN else f"{url[:_SHOWN]}…"
    raise Refusal(
        "unsupported",
        f"the URL {quoted!r} is not forwarded to the policy's server. Send the content as a "
        "data: URL, or allow the host on the gateway: [policy] media_hosts in the "
        "config, or --media-host of `plimsoll gateway`. It must be http:// or https://, without a "
        "user.",
    )
