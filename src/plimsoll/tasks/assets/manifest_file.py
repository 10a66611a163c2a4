"""assets.toml: validated on reading, because users may edit it; written atomically."""

import os
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Annotated

import tomlkit
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from tomlkit.items import Item

from plimsoll.core.errors import AssetError
from plimsoll.core.ids import short_id
from plimsoll.core.toml_lines import line_of, show_key
from plimsoll.tasks.assets.asset import Asset, Request
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["MANIFEST", "read_manifest", "write_file", "write_manifest"]

MANIFEST = "assets.toml"
VERSION = 1
HEAD = """\
# Written by `plimsoll stage`. Each [[asset]] is a file or folder here. Each [[request]] is
# content that tasks fetch, with the assets that provide it. Remove the `mount` of an asset if
# a task writes to that folder: its clone then copies from the mirror.
"""


def _relative(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError("expected a path inside the assets folder")
    return path


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or path.strip("/") == "":
        raise ValueError("expected an absolute path")
    return path.rstrip("/")


RelativePath = Annotated[str, AfterValidator(_relative)]


class Table(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AssetTable(Table):
    """An [[asset]]."""

    kind: Kind
    source: str
    pin: str
    digest: Annotated[str, Field(pattern=r"^(sha256|tree):[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    path: RelativePath
    mount: Annotated[str, AfterValidator(_absolute)] | None = None
    how: str = ""


class RequestTable(Table):
    """A [[request]]."""

    kind: Kind
    what: tuple[str, ...]
    revision: str | None = None
    python: str | None = None
    assets: tuple[RelativePath, ...]


def _supported(version: int) -> int:
    if version != VERSION:
        raise ValueError(
            f"{version} is the format of another version of Plimsoll; this one reads {VERSION}: "
            "stage to a new folder"
        )
    return version


class Manifest(Table):
    """The whole file."""

    version: Annotated[int, AfterValidator(_supported)] = VERSION
    asset: tuple[AssetTable, ...] = ()
    request: tuple[RequestTable, ...] = ()


def read_manifest(folder: Path) -> tuple[tuple[Asset, ...], tuple[Request, ...]]:
    """Read the assets and requests of a folder; `AssetError` names file, line and key."""
    file = folder / MANIFEST
    try:
        text = file.read_text("utf-8")
        found = Manifest.model_validate(tomllib.loads(text))
    except FileNotFoundError:
        raise AssetError(
            f"{file}: missing; `plimsoll stage TASKS --to {shlex.quote(str(folder))}` writes it"
        ) from None
    except OSError as error:
        raise AssetError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AssetError(f"{file}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise AssetError(f"{file}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise AssetError(_describe(file, error)) from None
    assets = tuple(Asset(**dict(table)) for table in found.asset)
    return assets, tuple(Request(**dict(table)) for table in found.request)


def _describe(file: Path, error: ValidationError) -> str:
    text = file.read_text("utf-8")
    lines: list[str] = []
    for problem in error.errors():
        line = line_of(text, problem["loc"])
        location = file if line is None else f"{file}:{line}"
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{location}: {show_key(problem['loc'])}: {message}")
    return "\n".join(lines)


def write_manifest(folder: Path, assets: Iterable[Asset], requests: Iterable[Request]) -> None:
    """Replace assets.toml atomically."""
    text = [HEAD, f"version = {VERSION}\n"]
    for asset in sorted(assets, key=lambda one: one.path):
        text.append(_table("asset", asset))
    for request in sorted(requests, key=lambda one: tuple(map(str, one.key))):
        text.append(_table("request", request))
    if not _has_text(file := folder / MANIFEST, content := "".join(text)):
        write_file(file, content)


def _has_text(file: Path, text: str) -> bool:
    """Whether the file has this text already; skipping the write works on a full disk too."""
    try:
        return file.read_text("utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _table(name: str, item: Asset | Request) -> str:
    values = ((field.name, getattr(item, field.name)) for field in fields(item))
    pairs = (f"{key} = {_value(value)}\n" for key, value in values if value is not None)
    return f"\n[[{name}]]\n{''.join(pairs)}"


def _value(value: str | int | tuple[str, ...]) -> str:
    item: Item = tomlkit.item(list(value) if isinstance(value, tuple) else value)
    return item.as_string()


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file atomically; if that fails, the old file remains."""
    fresh = path.with_name(f".partial-{short_id()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(mode)
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
