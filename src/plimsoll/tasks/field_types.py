"""Field types of task.toml. Each type describes the expected value in its error message.

TOML values are typed, so nothing is coerced: `"600"` is not a number.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

__all__ = [
    "Count",
    "Env",
    "Host",
    "MinReward",
    "NonNegative",
    "Positive",
    "PositiveInt",
    "SchemaVersion",
    "StepName",
    "Text",
    "User",
    "broken_rule",
    "is_number",
    "megabytes",
    "unexpected",
]

STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
SCHEMA_VERSION = re.compile(r"[01](\.\d+)*")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
MEGABYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}


def expects(what: str, holds: Callable[[object], bool]) -> BeforeValidator:
    """Return a validator whose error names `what` as the expected value."""

    def check(value: object) -> object:
        if not holds(value):
            raise unexpected(what, value)
        return value

    return BeforeValidator(check)


def unexpected(what: str, got: object, *key: str | int) -> PydanticCustomError:
    """Error about one value; `key` is its path relative to the table that raises the error."""
    return PydanticCustomError("expected", "{what}", {"what": what, "got": got, "key": key})


def broken_rule(message: str, *key: str | int) -> PydanticCustomError:
    """Error about several values together; `key` is the path of the value to change."""
    return PydanticCustomError("rule", "{message}", {"message": message, "key": key})


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return is_number(value) and cast(float, value) > 0


def _is_non_negative(value: object) -> bool:
    return is_number(value) and cast(float, value) >= 0


def _is_positive_int(value: object) -> bool:
    return _is_int(value) and cast(int, value) > 0


def _is_count(value: object) -> bool:
    return _is_int(value) and cast(int, value) >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_user(value: object) -> bool:
    return _is_text(value) or _is_count(value)


def _is_step_name(value: object) -> bool:
    return isinstance(value, str) and STEP_NAME.fullmatch(value) is not None


def _is_schema_version(value: object) -> bool:
    return isinstance(value, str) and SCHEMA_VERSION.fullmatch(value) is not None


def _is_host(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if HOST.fullmatch(value):
        return True
    from ipaddress import ip_network  # Slow to import, and few tasks name an address.

    try:
        ip_network(value, strict=False)
    except ValueError:
        return False
    return True


def _check_env_names(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name or "\0" in name:
            raise broken_rule("not a valid name of an environment variable", name)
    return env


def _is_min_reward(value: object) -> bool:
    if isinstance(value, dict):
        table = cast(dict[str, object], value)
        return bool(table) and all(is_number(v) for v in table.values())
    return is_number(value)


def megabytes(size: object) -> int | None:
    """Convert a size such as "2G", as older tasks write it, to megabytes; None if it is invalid."""
    match = SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match is None:
        return None
    return math.ceil(float(match[1]) * MEGABYTES[match[2].upper()]) or None


def _number_to_text(value: object) -> object:
    return str(value) if _is_int(value) else value


Positive = Annotated[float, expects("a number greater than 0", _is_positive)]
NonNegative = Annotated[float, expects("a number of at least 0", _is_non_negative)]
PositiveInt = Annotated[int, expects("a whole number greater than 0", _is_positive_int)]
Count = Annotated[int, expects("a whole number of at least 0", _is_count)]
Text = Annotated[str, expects("text that is not empty", _is_text)]
User = Annotated[str, BeforeValidator(_number_to_text), expects("a user name or number", _is_user)]
"""A user name or a numeric id, always as text."""
StepName = Annotated[str, expects("a folder name of letters, digits and . _ -", _is_step_name)]
SchemaVersion = Annotated[str, expects('a version of schema 1, such as "1.4"', _is_schema_version)]
Host = Annotated[str, expects("a host name, *.domain, address or address range", _is_host)]
Env = Annotated[dict[str, str], AfterValidator(_check_env_names)]
MinReward = Annotated[
    Any, expects("a number, or a table with a number for each reward", _is_min_reward)
]
