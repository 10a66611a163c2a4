"""Files of lines, each a JSON object by itself, as a run's directory has them."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = ["read_lines"]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def read_lines(path: Path, kind: type[_T]) -> Iterator[_T]:
    """The lines of a file, if there is one. A line that is damaged is named, and left out."""
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                _log.warning("%s:%d is not what was written, and left out: %s", path, number, error)
