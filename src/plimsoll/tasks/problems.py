"""What is wrong with a task.toml, in words: `file:line: key: expected …, got …`."""

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
TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that the task format does not know. Its line is looked up only when asked for."""

    file: Path
    path: KeyPath
    known: tuple[str, ...]
    """The keys that the format knows in the same table."""

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
        close = difflib.get_close_matches(str(self.path[-1]), self.known, n=1)
        return close[0] if close else None

    def describe(self) -> str:
        hint = f" (did you mean {self.suggestion}?)" if self.suggestion else ""
        return f"{_place(self.file, self.line)}: unknown key {self.key}{hint}"


def unknown_keys(file: Path, config: TaskConfig) -> tuple[UnknownKey, ...]:
    """Every key of a config that its table does not know."""
    return tuple(_unknown_in(file, config, ()))


def _unknown_in(file: Path, table: BaseModel, path: KeyPath) -> Iterator[UnknownKey]:
    kind = type(table)
    for key in table.model_extra or ():
        known = (*kind.model_fields, *OLDER_KEYS.get(kind, ()))
        yield UnknownKey(file, (*path, key), known)
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
    """The problem line for a text that is not TOML."""
    message = str(error)
    match = TOML_PLACE.search(message)
    if match is None:
        return f"{file}: not valid TOML: {message}"
    what = message[: match.start()]
    if match[1] is None:
        return f"{_place(file, text.count(chr(10)) + 1)}: not valid TOML: {what} at the end"
    return f"{_place(file, int(match[1]))}: not valid TOML: {what} at column {match[2]}"


def invalid_values(file: Path, text: str, error: ValidationError) -> tuple[str, ...]:
    """One problem line for each value that is not as the format wants it."""
    return tuple(
        _describe(file, text, cast(dict[str, Any], problem))
        for problem in error.errors(include_url=False)
    )


def _describe(file: Path, text: str, problem: dict[str, Any]) -> str:
    kind: str = problem["type"]
    context: dict[str, Any] = problem.get("ctx", {})
    path: KeyPath = (*problem["loc"], *context.get("key", ()))
    if kind == "rule":
        said = str(context["message"])
    elif kind == "missing":
        said = "is required"
    elif kind == "expected":
        said = f"expected {context['what']}, got {_show(context['got'])}"
    elif kind in ("enum", "literal_error"):
        choices = str(context["expected"]).replace("'", '"')
        said = f"expected {choices}, got {_show(problem['input'])}"
    elif kind in EXPECTED:
        said = f"expected {EXPECTED[kind]}, got {_show(problem['input'])}"
    else:
        said = f"{problem['msg']}, got {_show(problem['input'])}"
    return f"{_place(file, line_of(text, path))}: {show_key(path)}: {said}"


def _place(file: Path, line: int | None) -> str:
    return f"{file}:{line}" if line is not None else str(file)


def _show(value: object) -> str:
    """A TOML value in few characters."""
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value).items()
        return _cut("{" + ", ".join(f"{key} = {_show(item)}" for key, item in pairs) + "}")
    if isinstance(value, list):
        return _cut("[" + ", ".join(_show(item) for item in cast(list[object], value)) + "]")
    if isinstance(value, str | bool | int | float):
        return _cut(json.dumps(value, ensure_ascii=False))
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
