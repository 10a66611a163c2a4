"""Prunes Plimsoll's images that are no longer needed, by last use and by size.

The last use of an image is stored on the daemon, as its tag time, which each use sets. Sizes
count shared layers once: each image of a parent chain counts what it adds to its parent.
Images with a container, images used a short while ago, and parents of other images are
needed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import ImageSummary
from plimsoll.sandboxes.docker.images.build_input import BUILD_LABEL
from plimsoll.sandboxes.docker.labels import OWNER_LABEL

__all__ = ["PrunedImage", "prune_images"]

_IMAGE_PREFIX = "plimsoll/"
_RECENT_USE = 3600.0
"""Seconds after a use in which an image is never pruned."""
_UNFINISHED_BUILD = 6 * 3600.0
"""Seconds after which an untagged image does not belong to a running build."""


@dataclass(frozen=True, slots=True)
class PrunedImage:
    """A removed image."""

    id: str
    name: str
    """"" for an image that a failed build left."""
    bytes: int


async def prune_images(
    daemon: Daemon,
    *,
    keep_bytes: float,
    keep_days: float,
    now: float,
    in_use: Collection[str] = (),
) -> list[PrunedImage]:
    """Remove images of Plimsoll not used for `keep_days`, then the least recently used ones
    beyond `keep_bytes` in total. `in_use` are ids and names of images to keep.
    """
    tree = _ImageTree(await daemon.images(all=True))
    used = {row.image_id for row in await daemon.containers()}
    times = {leaf.id: await _last_use(daemon, leaf) for leaf in tree.leaves()}
    removed: list[PrunedImage] = []
    needed = {*used, *in_use}
    for row in sorted(tree.leaves(), key=lambda row: times[row.id]):
        age = now - times[row.id]
        names = _names(row)
        if row.id in needed or needed.intersection(names) or _is_young(age, names):
            continue
        if not all(name.startswith(_IMAGE_PREFIX) for name in names):
            continue  # someone gave it another name
        if names and age < keep_days * 86400 and tree.size() <= keep_bytes:
            continue
        if await _remove(daemon, row):
            removed.append(PrunedImage(row.id, (names or [""])[0], tree.remove(row)))
    return removed


def _is_young(age: float, names: list[str]) -> bool:
    return age < (_RECENT_USE if names else _UNFINISHED_BUILD)


class _ImageTree:
    """The daemon's images, linked by parent."""

    def __init__(self, rows: Iterable[ImageSummary]) -> None:
        self._rows: dict[str, ImageSummary] = {row.id: row for row in rows}
        self._children: dict[str, set[str]] = {}
        for row in self._rows.values():
            self._children.setdefault(row.parent_id, set()).add(row.id)

    def leaves(self) -> list[ImageSummary]:
        """Images of Plimsoll without children."""
        return [
            row for row in self._rows.values() if _is_plimsolls(row) and not self._has_child(row)
        ]

    def size(self) -> int:
        """The total size of Plimsoll's images in bytes."""
        return sum(self._own_size(row) for row in self._rows.values() if _is_plimsolls(row))

    def remove(self, row: ImageSummary) -> int:
        """Remove an image and its untagged parents without other children; the bytes freed."""
        freed = 0
        at: ImageSummary | None = row
        while at is not None and _is_plimsolls(at) and not self._has_child(at):
            if at is not row and _names(at):
                break
            freed += self._own_size(at)
            del self._rows[at.id]
            self._children[at.parent_id].discard(at.id)
            at = self._rows.get(at.parent_id)
        return freed

    def _has_child(self, row: ImageSummary) -> bool:
        return bool(self._children.get(row.id))

    def _own_size(self, row: ImageSummary) -> int:
        parent = self._rows.get(row.parent_id)
        return max(0, row.size - parent.size) if parent else row.size


def _is_plimsolls(row: ImageSummary) -> bool:
    labels: Mapping[str, str] = row.labels or {}
    return OWNER_LABEL in labels or BUILD_LABEL in labels


def _names(row: ImageSummary) -> list[str]:
    return [name for name in row.repo_tags or [] if name != "<none>:<none>"]


async def _last_use(daemon: Daemon, row: ImageSummary) -> float:
    """The tag time of an image, which is its last use; else its creation time."""
    found = await daemon.image(row.id) if _names(row) else None
    if found is None:
        return row.created
    try:
        tagged = datetime.fromisoformat(found.metadata.last_tag_time)
    except ValueError:
        return row.created
    # The daemon reports the year 1 for an unknown tag time.
    return max(row.created, tagged.timestamp()) if tagged.year > 1 else row.created


async def _remove(daemon: Daemon, row: ImageSummary) -> bool:
    """Remove an image. Returns False if it is in use."""
    try:
        for name in _names(row) or [row.id]:
            await daemon.remove_image(name)
    except DaemonError as error:
        if error.status == 409:
            return False
        raise
    return True
