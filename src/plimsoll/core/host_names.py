"""Names and addresses of hosts, and patterns such as `*.example.org` for all names below one."""

import re

from plimsoll.core.errors import UsageError

__all__ = ["NAME", "check_host_names"]

NAME = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
"""A regular expression of a host name in lower case."""
_PATTERN = re.compile(rf"(?:\*\.)?{NAME}|\[[0-9a-f:.]+\]")


def check_host_names(names: tuple[str, ...], where: str) -> None:
    """Raise `UsageError` for a text that is neither a host nor a pattern of hosts."""
    for name in names:
        if not _PATTERN.fullmatch(name.lower()):
            raise UsageError(
                f'{where}: "{name}" is not a host: give a name such as images.example.org, '
                "*.example.org for all names below one, or an address such as 10.0.0.7 or [fd00::7]"
            )
