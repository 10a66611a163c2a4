"""Keys of interchangeable sandboxes.

Two specifications have the same key if all fields except the labels are equal. Every field is
included by default, so a field added later is never forgotten.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from plimsoll.sandboxes.protocol import Image, ImageSource, SandboxSpec

__all__ = ["PoolKey", "pool_key", "source_key", "spec_key"]


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Sandboxes with equal keys are interchangeable."""

    image: str
    spec: str


def pool_key(image: Image, spec: SandboxSpec) -> PoolKey:
    return PoolKey(image.key, spec_key(spec))


def spec_key(spec: SandboxSpec) -> str:
    return _digest(_to_tuples(spec, without="labels"))


def source_key(source: ImageSource) -> str:
    return _digest(_to_tuples(source))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()


def _to_tuples(value: object, *, without: str = "") -> object:
    """Nested tuples, whose representation is equal for equal values."""
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.name != without)
        return tuple((name, _to_tuples(getattr(value, name))) for name in names)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, object]", value).items()
        return tuple(sorted((key, _to_tuples(one)) for key, one in items))
    if isinstance(value, tuple):
        return tuple(_to_tuples(one) for one in cast("tuple[object, ...]", value))
    return value
