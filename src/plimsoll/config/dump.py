"""Dumps a config as TOML that can be loaded again, with the documentation of each key."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import cast

import tomlkit
from pydantic import BaseModel
from tomlkit.items import Item, Table

from plimsoll.config.file import Config

__all__ = ["documentation", "dump_config"]

_WIDTH = 96


def dump_config(config: Config) -> str:
    """The whole config with all defaults. A key without a value is a comment."""
    document = tomlkit.document()
    _fill(document, config)
    return tomlkit.dumps(document).strip() + "\n"


def _fill(target: tomlkit.TOMLDocument | Table, table: BaseModel) -> None:
    """Add the keys of a table, then its subtables: TOML requires that order."""
    texts = documentation(type(table))
    fields = type(table).model_fields
    values = [(name, field.alias or name, getattr(table, name)) for name, field in fields.items()]
    for name, key, value in values:
        if not isinstance(value, BaseModel):
            _comment(target, texts.get(name, ""))
            if value is None:
                target.add(tomlkit.comment(f"{key} ="))
            else:
                target.add(key, _item(value))
    for _, key, value in values:
        if isinstance(value, BaseModel):
            target.add(tomlkit.nl())
            _comment(target, inspect.getdoc(type(value)) or "")
            subtable = tomlkit.table()
            _fill(subtable, value)
            target.add(key, subtable)
            # tomlkit separates tables by an empty line: there is one before the comment already.
            subtable.trivia.indent = ""


@functools.cache
def documentation(table: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field, read from the source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    assert isinstance(definition, ast.ClassDef), f"{table} is not a class"
    texts: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(ast.Constant(str(docstring))):
                    texts[field.target.id] = docstring
                case _:
                    pass
    return texts


def _comment(target: tomlkit.TOMLDocument | Table, text: str) -> None:
    for line in textwrap.wrap(" ".join(text.split()), _WIDTH):
        target.add(tomlkit.comment(line))


def _item(value: object) -> Item:
    match value:
        case Mapping():
            inline = tomlkit.inline_table()
            for key, inner in cast("Mapping[str, object]", value).items():
                inline.append(key, _item(inner))
            return inline
        case str() | bool() | int() | float():
            return tomlkit.item(value)
        case Sequence():
            return tomlkit.item([_item(inner) for inner in cast("Sequence[object]", value)])
        case _:
            raise TypeError(f"{value!r} cannot be written as TOML")
