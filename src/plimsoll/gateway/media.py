"""Media checks: the URLs in a request that the policy's server would open.

A server fetches the URLs it is given and may open file paths too, from its own network and with its
own rights. An agent must not choose them.
"""

import re
from typing import Any, cast

import msgspec

from plimsoll.core.host_names import NAME
from plimsoll.gateway.completions import History, Refusal
from plimsoll.trajectories.messages import Image, Message, Other, Text

__all__ = ["CheckedHistory", "MediaHosts", "check_media"]

# Only one spelling of a URL matches, so that all parsers see the same host: no user, no backslash,
# blank or control character, and no escape in the host.
_URL = re.compile(
    rf"https?://(?P<host>{NAME}|\[[0-9a-f:.]+\])\.?(?::[0-9]{{1,5}})?(?:/[!-\[\]-~]*)?",
    re.IGNORECASE,
)


class MediaHosts:
    """Host names, and patterns such as `*.example.org` for every name below a domain."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        lower = [name.lower() for name in names]
        self._names = frozenset(name for name in lower if not name.startswith("*."))
        self._suffixes = tuple(name[1:] for name in lower if name.startswith("*."))

    def allow(self, url: str) -> bool:
        """Whether the policy's server may be given this URL. A `data:` URL names no host."""
        # Servers compare schemes case-sensitively, and open unknown ones as files.
        if url.startswith("data:"):
            return True
        if not url.startswith(("http://", "https://")):
            return False
        found = _URL.fullmatch(url)
        if found is None:
            return False
        host = found["host"].lower()
        return host in self._names or host.endswith(self._suffixes)


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
