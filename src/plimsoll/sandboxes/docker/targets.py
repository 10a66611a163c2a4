"""What images have at paths, for mounts that give way to what an image brings."""

import asyncio
import io
import tarfile
import time
from collections.abc import Iterable

from plimsoll.core.ids import Labels, short_id
from plimsoll.core.waiting import to_the_end
from plimsoll.sandboxes.docker.engine import Engine
from plimsoll.sandboxes.docker.labels import to_engine
from plimsoll.sandboxes.owners import myself

__all__ = ["Targets"]

_LIFE = 3600.0
_MOST_LINKS = 10
_ENOUGH = 64 << 10


class Targets:
    """Asks the engine once for each image and path, by a container that never runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, dict[str, bool]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def taken(self, image: str, targets: Iterable[str]) -> frozenset[str]:
        """Those of the paths where the image has a file, or a folder that is not empty."""
        wanted = set(targets)
        if not wanted:
            return frozenset()
        async with self._turns.setdefault(image, asyncio.Lock()):
            known = self._known.setdefault(image, {})
            if missing := wanted - known.keys():
                known |= await self._ask(image, missing)
        return frozenset(target for target in wanted if known[target])

    async def _ask(self, image: str, targets: Iterable[str]) -> dict[str, bool]:
        name = f"plimsoll-looks-{short_id()}"
        labels = Labels("shared", "looks", myself(), time.time() + _LIFE)
        config = {
            "Image": image,
            "Entrypoint": ["/none"],
            "Labels": to_engine(labels),
            "HostConfig": {"NetworkMode": "none"},
        }
        try:
            await to_the_end(self._engine.create_container(config, name))
            return {target: await self._holds_something(name, target) for target in targets}
        finally:
            await to_the_end(self._engine.remove(name))

    async def _holds_something(self, container: str, path: str) -> bool:
        for _ in range(_MOST_LINKS):
            found = await self._engine.stat_archive(container, path)
            if found is None:
                return False
            if not found.is_link:
                return not found.is_folder or await self._is_full(container, path)
            path = found.link_target
        return False

    async def _is_full(self, container: str, path: str) -> bool:
        """Whether the tar of a folder has a second member; no more of it is read than that."""
        seen = b""
        async with self._engine.get_archive(container, f"{path.rstrip('/')}/") as pieces:
            async for piece in pieces:
                seen += piece
                if (count := _members(seen)) > 1 or len(seen) > _ENOUGH:
                    return count > 1
        return False


def _members(start: bytes) -> int:
    """How many members begin in the first bytes of a tar, counted to two."""
    count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(start), mode="r|") as tar:
            while count < 2 and tar.next() is not None:
                count += 1
    except tarfile.TarError:
        pass
    return count
