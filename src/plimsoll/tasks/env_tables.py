"""Host variables in the env tables of task.toml: `${NAME}` and `${NAME:-default}`."""

import re
from collections.abc import Mapping

from plimsoll.core.errors import TaskError

__all__ = ["resolve_env"]

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def resolve_env(env: Mapping[str, str], host: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the table with host values filled in; `where` names its file and key in errors."""
    problems: list[str] = []

    def resolve(key: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name, default = match.groups()
            found = host.get(name)
            if default is not None:
                return found or default
            if found is None:
                problems.append(
                    f"{where}.{key}: the variable {name} is not set; "
                    f"set it, or write ${{{name}:-default}}"
                )
                return ""
            return found

        return REFERENCE.sub(value, text)

    resolved = {key: resolve(key, text) for key, text in env.items()}
    if problems:
        raise TaskError(*problems)
    return resolved
