"""Error messages about task.toml: `file:line: key: expected …, got …`."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from plimsoll.core.toml_lines import KeyPath, line_of, show_key
from plimsoll.tasks.task_file import EnvironmentConfig, TaskConfig

__all__ = ["UnknownKey", "invalid_values", "not_toml", "unknown_keys"]

EXPECTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a table",
    "model_type": "a table",
    "string_type": "text",
    "tuple_type": "a list",
}
OLDER_KEYS: dict[type[BaseModel], tuple[str, ...]] = {
    TaskConfig: ("version",),
    EnvironmentConfig: ("allow_internet", "memory", "storage"),
}
TOML_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that the task format does not define. Its line is looked up on demand."""

    file: Path
    path: KeyPath
    known_keys: tuple[str, ...]
    """The keys that the format defines for the same table."""

    @property
    def key(self) -> str:
        return show_key(self.path)

    @property
    def line(self) -> int | None:
        try:
            return line_of(self.file.read_text("utf-8-sig"), self.path)
        except (OSError, UnicodeDecodeError):
            return None

    @property
    def suggestion(self) -> str | None:
        close = difflib.get_close_matches(str(self.path[-1]), self.known_keys, n=1)
        return close[0] if close else None

    def describe(self) -> str:
        hint = f" (did you mean {self.suggestion}?)" if self.suggestion else ""
        return f"{_location(self.file, self.line)}: unknown key {self.key}{hint}"


def unknown_keys(file: Path, config: TaskConfig) -> tuple[UnknownKey, ...]:
    """Return all keys of a config that their tables do not define."""
    return tuple(_unknown_in(file, config, ()))


def _unknown_in(file: Path, table: BaseModel, path: KeyPath) -> Iterator[UnknownKey]:
    kind = type(table)
    for key in table.model_extra or ():
        known_keys = (*kind.model_fields, *OLDER_KEYS.get(kind, ()))
        yield UnknownKey(file, (*path, key), known_keys)
    for key in kind.model_fields:
        if key not in table.model_fields_set:
            continue
        value = table.__dict__.get(key)
        if isinstance(value, BaseModel):
            yield from _unknown_in(file, value, (*path, key))
        elif isinstance(value, tuple):
            for index, item in enumerate(cast(tuple[object, ...], value)):
                if isinstance(item, BaseModel):
                    yield from _unknown_in(file, item, (*path, key, index))


def not_toml(file: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return the message for a text that is not valid TOML."""
    message = str(error)
    match = TOML_POSITION.search(message)
    if match is None:
        return f"{file}: not valid TOML: {message}"
    reason = message[: match.start()]
    if match[1] is None:
        return f"{_location(file, text.count(chr(10)) + 1)}: not valid TOML: {reason} at the end"
    return f"{_location(file, int(match[1]))}: not valid TOML: {reason} at column {match[2]}"


def invalid_values(file: Path, text: str, error: ValidationError) -> tuple[str, ...]:
    """Return one message for each invalid value."""
    return tuple(
        _describe(file, text, cast(dict[str, Any], problem))
        for problem in error.errors(include_url=False)
    )


def _describe(file: Path, text: str, problem: dict[str, Any]) -> str:
    kind: str = problem["type"]
    context: dict[str, Any] = problem.get("ctx", {})
    path: KeyPath = (*problem["loc"], *context.get("key", ()))
    if kind == "rule":
        message = str(context["message"])
    elif kind == "missing":
        message = "is required"
    elif kind == "expected":
        message = f"expected {context['what']}, got {_format(context['got'])}"
    elif kind in ("enum", "literal_error"):
        choices = str(context["expected"]).replace("'", '"')
        message = f"expected {choices}, got {_format(problem['input'])}"
    elif kind in EXPECTED:
        message = f"expected {EXPECTED[kind]}, got {_format(problem['input'])}"
    else:
        message = f"{problem['msg']}, got {_format(problem['input'])}"
    return f"{_location(file, line_of(text, path))}: {show_key(path)}: {message}"


def _location(file: Path, line: int | None) -> str:
    return f"{file}:{line}" if line is not None else str(file)


def _format(value: object) -> str:
    """Format a TOML value, shortened."""
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value).items()
        return _shorten("{" + ", ".join(f"{key} = {_format(item)}" for key, item in pairs) + "}")
    if isinstance(value, list):
        return _shorten("[" + ", ".join(_format(item) for item in cast(list[object], value)) + "]")
    if isinstance(value, str | bool | int | float):
        return _shorten(json.dumps(value, ensure_ascii=False))
    return str(value)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
