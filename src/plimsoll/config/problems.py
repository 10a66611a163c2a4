"""Problems of a config file for a person: the file, the line, the key and the expected value."""

import difflib
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from plimsoll.config.table import keys
from plimsoll.core.toml_lines import KeyPath, line_of, show_key

__all__ = ["describe_problem", "location"]

_EXPECTED = {
    "string_type": "text",
    "dict_type": "a table",
    "model_type": "a table",
    "tuple_type": "a list",
    "bool_type": "true or false",
}
_NUMBERS = {
    "int_type",
    "float_type",
    "finite_number",
    "greater_than",
    "greater_than_equal",
    "less_than_equal",
}
"""Kinds of problems with numbers."""


def describe_problem(root: type[BaseModel], file: Path, text: str, problem: ErrorDetails) -> str:
    """One line about a problem that validation against the model `root` found in the file."""
    path = problem["loc"]
    where = location(file, text, path)
    if problem["type"] == "extra_forbidden":
        table = _table(root, path[:-1])
        assert table is not None, f"{path} is in no table with fixed keys"
        allowed = list(keys(table))
        close = difflib.get_close_matches(str([*path][-1]), allowed, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(allowed)}"
        return f"{where}: unknown key {show_key(path)} ({hint})"
    expected = _expected(root, problem)
    what = f"expected {expected}" if expected else problem["msg"]
    return f"{where}: {show_key(path)}: {what}"


def _table(root: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The table at a path of the file; None for a mapping with free keys."""
    table = root
    for key in path:
        found = keys(table)[str(key)].annotation
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return None
        table = found
    return table


def _expected(root: type[BaseModel], problem: ErrorDetails) -> str | None:
    kind = problem["type"]
    if kind == "literal_error":
        return str(problem.get("ctx", {})["expected"]).replace("'", "")
    return _number(root, problem["loc"]) if kind in _NUMBERS else _EXPECTED.get(kind)


def _number(root: type[BaseModel], path: KeyPath) -> str:
    """The kind of number that a key takes."""
    table, key = _table(root, path[:-1]), str(path[-1])
    if table is None or key not in keys(table):
        return "a number"  # in a mapping with free keys
    field = keys(table)[key]
    bounds = {
        name: limit
        for bound in field.metadata
        for name in ("ge", "gt", "le")
        if (limit := getattr(bound, name, None)) is not None
    }
    noun = "a number" if field.annotation is float else "a whole number"
    match bounds:
        case {"ge": low, "le": high}:
            return f"{noun} from {low:g} to {high:g}"
        case {"ge": low}:
            return f"{noun}, {low:g} or more"
        case {"gt": low}:
            return f"{noun} above {low:g}"
        case _:
            return noun


def location(file: Path, text: str, path: KeyPath) -> str:
    """The file and the line of a key."""
    line = line_of(text, path)
    return str(file) if line is None else f"{file}:{line}"
