"""A config as TOML that can be read back, each key under what is said of it."""

import ast
import functools
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import BaseModel

from plimsoll.config.file import Config

__all__ = ["dump_config"]

_WIDTH = 96


def dump_config(config: Config) -> str:
    """All of it, defaults too. A key that is not set is there as a comment."""
    return "\n".join(_table(config, ())).strip() + "\n"


def _table(table: BaseModel, path: tuple[str, ...]) -> Iterator[str]:
    """Its keys, then the tables in it: TOML wants them in that order."""
    said = documented(type(table))
    fields = type(table).model_fields
    values = [(name, field.alias or name, getattr(table, name)) for name, field in fields.items()]
    if path:
        yield from ("", *_comment(_summary(type(table))), f"[{'.'.join(path)}]")
    for name, key, value in values:
        if not isinstance(value, BaseModel):
            yield from _comment(said.get(name, ""))
            yield f"# {key} =" if value is None else f"{key} = {_value(value)}"
    for _, key, value in values:
        if isinstance(value, BaseModel):
            yield from _table(value, (*path, key))


@functools.cache
def documented(table: type[BaseModel]) -> dict[str, str]:
    """What stands under each field in the source."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    assert isinstance(made, ast.ClassDef), f"{table} is no class"
    found: dict[str, str] = {}
    for field, text in zip(made.body, made.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(ast.Constant(str(words))):
                    found[field.target.id] = " ".join(words.split())
                case _:
                    pass
    return found


def _summary(table: type[BaseModel]) -> str:
    return " ".join((table.__doc__ or "").split())


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # A JSON text is a TOML one, but for the control character that JSON leaves bare.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            entries = cast("Mapping[str, object]", value).items()
            inside = ", ".join(f"{json.dumps(key)} = {_value(one)}" for key, one in entries)
            return f"{{ {inside} }}" if inside else "{}"
        case Sequence():
            return f"[{', '.join(map(_value, cast('Sequence[object]', value)))}]"
        case _:
            raise TypeError(f"{value!r} cannot be written as TOML")
