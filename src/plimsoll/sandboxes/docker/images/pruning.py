"""Collects images of ours that nobody needs any more, by age of last use and by size.

An image's last use is on the engine itself: the time of its tag, which is set at each use. Sizes
are exact for what shares layers: each image in a chain of parents counts with what it adds to
its parent. What a container is made from, what was used a short while ago, and what images
other than ours are built on stays.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from plimsoll.core.errors import SandboxUnavailable
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.daemon.responses import ImageSummary
from plimsoll.sandboxes.docker.images.build_input import BUILD_LABEL
from plimsoll.sandboxes.docker.labels import OWNER_LABEL

__all__ = ["PrunedImage", "prune_images"]

_OURS = "plimsoll/"
_RECENT_USE = 3600.0
"""Seconds for which an image that was used may still be about to be used."""
_UNFINISHED_BUILD = 6 * 3600.0
"""Seconds after which an image without a name is no longer part of a build under way."""


@dataclass(frozen=True, slots=True)
class PrunedImage:
    """An image that was removed."""

    id: str
    name: str
    """"" for what a failed build left."""
    bytes: int


async def prune_images(
    engine: Daemon,
    *,
    keep_bytes: float,
    keep_days: float,
    now: float,
    held: Collection[str] = (),
) -> list[PrunedImage]:
    """Remove images of ours that were last used `keep_days` ago, then the oldest beyond
    `keep_bytes` in all. `held` are ids and names of images that are being used.
    """
    forest = _ImageTree(await engine.images(all=True))
    used = {row.image_id for row in await engine.containers()}
    times = {leaf.id: await _last_use(engine, leaf) for leaf in forest.leaves()}
    removed: list[PrunedImage] = []
    kept = {*used, *held}
    for row in sorted(forest.leaves(), key=lambda row: times[row.id]):
        age = now - times[row.id]
        names = _names(row)
        if row.id in kept or kept.intersection(names) or _is_young(age, names):
            continue
        if not all(name.startswith(_OURS) for name in names):
            continue  # somebody gave it a name of their own
        if names and age < keep_days * 86400 and forest.size() <= keep_bytes:
            continue
        if await _remove(engine, row):
            removed.append(PrunedImage(row.id, (names or [""])[0], forest.remove(row)))
    return removed


def _is_young(age: float, names: list[str]) -> bool:
    return age < (_RECENT_USE if names else _UNFINISHED_BUILD)


class _ImageTree:
    """The engine's images by their parents."""

    def __init__(self, rows: Iterable[ImageSummary]) -> None:
        self._rows: dict[str, ImageSummary] = {row.id: row for row in rows}
        self._children: dict[str, set[str]] = {}
        for row in self._rows.values():
            self._children.setdefault(row.parent_id, set()).add(row.id)

    def leaves(self) -> list[ImageSummary]:
        """Images of ours that no other is built on."""
        return [row for row in self._rows.values() if _is_ours(row) and not self._has_child(row)]

    def size(self) -> int:
        """What all images of ours take up."""
        return sum(self._own_size(row) for row in self._rows.values() if _is_ours(row))

    def remove(self, row: ImageSummary) -> int:
        """Take out an image, and its parents that are without a name and another child."""
        freed = 0
        at: ImageSummary | None = row
        while at is not None and _is_ours(at) and not self._has_child(at):
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


def _is_ours(row: ImageSummary) -> bool:
    labels: Mapping[str, str] = row.labels or {}
    return OWNER_LABEL in labels or BUILD_LABEL in labels


def _names(row: ImageSummary) -> list[str]:
    return [name for name in row.repo_tags or [] if name != "<none>:<none>"]


async def _last_use(engine: Daemon, row: ImageSummary) -> float:
    """When an image was last tagged, which is when it was last used; else when it was made."""
    found = await engine.image(row.id) if _names(row) else None
    if found is None:
        return row.created
    try:
        tagged = datetime.fromisoformat(found.metadata.last_tag_time)
    except ValueError:
        return row.created
    # The engine has the year 1 for an image whose tags it does not remember.
    return max(row.created, tagged.timestamp()) if tagged.year > 1 else row.created


async def _remove(engine: Daemon, row: ImageSummary) -> bool:
    """Whether it was removed; one that has come into use is left."""
    try:
        for name in _names(row) or [row.id]:
            await engine.remove_image(name)
    except SandboxUnavailable:
        raise
    except DaemonError as error:
        if error.status == 409:
            return False
        raise
    return True
