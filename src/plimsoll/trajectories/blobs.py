"""Blobs: images too large for a record, as files named by their content.

The sessions of a run share one folder of blobs. An image is written once, under a temporary name
first, so that a file with its final name is complete.
"""

import base64
import binascii
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

from plimsoll.trajectories.messages import Image, Message, Part

__all__ = ["MAX_INLINE_CHARS", "Blobs", "blob_path", "media_type"]

MAX_INLINE_CHARS = 16 * 1024
"""A longer data URL becomes a blob."""
_PREFIX = "blob:sha256:"


def blob_path(url: str, folder: Path) -> Path | None:
    """The file of a `blob:` URL; None for any other URL."""
    if not url.startswith(_PREFIX):
        return None
    name = url.removeprefix(_PREFIX).partition(";")[0]
    # The URL may come from an untrusted file.
    is_name = len(name) == 64 and all(character in "0123456789abcdef" for character in name)
    return folder / name if is_name else None


def media_type(url: str) -> str:
    """The media type in a `blob:` or `data:` URL, such as `image/png`."""
    if url.startswith(_PREFIX):
        return url.partition(";")[2]
    if url.startswith("data:"):
        return url[5:100].partition(",")[0].partition(";")[0]
    return ""


class Blobs:
    """Stores the images of one session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: set[str] = set()

    @property
    def used(self) -> list[Path]:
        """The blobs that the session's messages refer to."""
        return [self._folder / name for name in sorted(self._used)]

    def store_images(self, message: Message) -> Message:
        """The message with a `blob:` URL for each large image."""
        if not any(_is_large(part) for part in message.parts):
            return message
        parts = tuple(self._part(part) for part in message.parts)
        return msgspec.structs.replace(message, parts=parts)

    def _part(self, part: Part) -> Part:
        if not isinstance(part, Image) or not _is_large(part):
            return part
        head, _, payload = part.url.partition(",")
        if not head.endswith(";base64"):
            return part
        try:
            content = base64.b64decode(payload, validate=True)
        except (binascii.Error, ValueError):
            return part
        name = hashlib.sha256(content).hexdigest()
        self._write(name, content)
        self._used.add(name)
        return Image(f"{_PREFIX}{name};{media_type(part.url)}")

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        if path.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{name}.{secrets.token_hex(4)}.part"
        try:
            with part.open("xb", buffering=0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
            os.replace(part, path)  # noqa: PTH105
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _is_large(part: Part) -> bool:
    return (
        isinstance(part, Image)
        and len(part.url) > MAX_INLINE_CHARS
        and part.url.startswith("data:")
    )
