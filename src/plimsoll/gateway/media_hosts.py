"""The hosts whose media a request may name by URL."""

import re

from plimsoll.core.host_names import NAME

__all__ = ["MediaHosts"]

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
