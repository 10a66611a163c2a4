"""How the engine comes by files of this host: the init, staged assets, other mounts.

An engine that sees this host's files mounts them as they are. For any other they are copied
once into named volumes.

What images have at paths, for mounts that give way to what an image brings.
"""

import asyncio
import hashlib
import io
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from plimsoll import __version__
from plimsoll.core.cancellation import run_to_completion
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.sandboxes.container.init_binary import InitBinary
from plimsoll.sandboxes.docker.container_spec import INIT, bind_mount, volume_mount
from plimsoll.sandboxes.docker.daemon.api import Daemon
from plimsoll.sandboxes.docker.daemon.errors import DaemonError
from plimsoll.sandboxes.docker.files.tar_stream import (
    Tar,
    add_tree,
    tar_stream,
    walk_tree,
)
from plimsoll.sandboxes.docker.files.volumes import ContentVolumes, WriteTar
from plimsoll.sandboxes.docker.labels import to_docker
from plimsoll.sandboxes.host.owners import this_process
from plimsoll.sandboxes.host.temporary import remove_leftovers, temporary_prefix
from plimsoll.sandboxes.local.host.home import Home
from plimsoll.sandboxes.protocol import Mount, SandboxSpec

__all__ = ["ContainerFiles", "HostFiles", "ImagePaths", "add_file"]

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_IMAGE_LIFETIME = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """What a container gets of this host."""

    mounts: tuple[dict[str, object], ...]
    copies: tuple[Mount, ...] = ()
    """Files to be put into the container before it starts: no volume is a single file."""
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of those among the mounts that are volumes, by their places."""


class HostFiles:
    """This host's files, for one engine."""

    def __init__(self, engine: Daemon, init: InitBinary, home: Path | None) -> None:
        self._engine = engine
        self._init = init
        self._home = home
        self._shared: Path | None = None
        """The init where the engine sees it; None where it does not see this host's files."""
        self._volumes = ContentVolumes(engine, self.ensure_image)
        self._targets = ImagePaths(engine)
        self._turn = asyncio.Lock()
        self._limits_storage: bool | None = None

    @property
    def are_shared(self) -> bool:
        """Whether the engine sees this host's files."""
        return self._shared is not None

    async def open(self) -> None:
        """Find out what the engine sees. Until then nothing can be carried to it."""
        await self.ensure_image()
        info = await self._engine.info()
        # Under SELinux a container may use only files that were made for containers.
        closed = any("selinux" in option for option in info.security_options or ())
        if self._engine.endpoint.is_local and not closed:
            self._shared = await self._find_shared()

    async def close(self) -> None:
        await self._volumes.close()

    def forget(self, volume: str) -> None:
        """Somebody removed a volume: the next sandbox that gets it has it filled again."""
        self._volumes.forget(volume)

    async def ensure_image(self) -> str:
        """An image with nothing in it but the init."""
        name = f"plimsoll/init:{self._init.digest}"
        if await self._engine.image(name) is None:
            labels = Labels("shared", "init", this_process(), time.time() + _IMAGE_LIFETIME)
            source = self._init.path
            async with tar_stream(lambda tar: add_file(tar, source, INIT, 0o555)) as tar:
                await self._engine.import_image(tar, name, to_docker(labels, shared=True))
        return name

    async def _find_shared(self) -> Path | None:
        """The init in our own folder, if the engine finds a file there by its name."""
        try:
            folder = Home.open(self._home).path / "docker"
            init = await asyncio.to_thread(_put_init, self._init, folder)
        except (SandboxError, OSError):
            return None
        with tempfile.NamedTemporaryFile(dir=folder, prefix=temporary_prefix()) as nonce:
            return init if await self._sees(nonce.name) else None

    async def _sees(self, path: str) -> bool:
        return await self._takes({"Mounts": [bind_mount(path, "/seen")]})

    async def limit_storage(self) -> bool:
        """Whether the engine's storage driver can limit what a container writes; asked once."""
        async with self._turn:
            if self._limits_storage is None:
                self._limits_storage = await self._takes({"StorageOpt": {"size": "1g"}})
            return self._limits_storage

    async def _takes(self, setting: dict[str, object]) -> bool:
        """Whether the engine creates a container with a setting. It never runs."""
        name = f"plimsoll-looks-{short_id()}"
        labels = Labels("shared", "looks", this_process(), time.time() + 600)
        config = {
            "Image": await self.ensure_image(),
            "Entrypoint": [INIT],
            "Labels": to_docker(labels),
            "HostConfig": {"NetworkMode": "none", **setting},
        }
        try:
            await run_to_completion(self._engine.create_container(config, name))
        except DaemonError:
            return False
        finally:
            await run_to_completion(self._engine.remove(name))
        return True

    async def carry(self, image: str, spec: SandboxSpec) -> ContainerFiles:
        """What a sandbox of this image gets: the init, and the mounts that apply."""
        wanted = [(mount, mount.key) for mount in spec.mounts]
        wanted += [(mount, spec.supplies.key) for mount in spec.supplies.mounts]
        modest = {mount.target for mount, _ in wanted if mount.unless_there}
        taken = await self._targets.taken(image, modest)
        mounts, copies = list[dict[str, object]](), list[Mount]()
        volumes: dict[str, str] = {}
        if self._shared is not None:
            mounts.append(bind_mount(str(self._shared), INIT))
        else:
            volumes[str(PurePosixPath(INIT).parent)] = await self._init_volume()
        for mount, key in wanted:
            if mount.unless_there and mount.target in taken:
                continue
            if not mount.source.exists():
                raise SandboxUnavailable(f"{mount.source} is not there, so it cannot be mounted")
            if self.are_shared:
                mounts.append(bind_mount(str(mount.source.absolute()), mount.target))
            elif mount.source.is_dir():
                volumes[mount.target] = await self._volume(mount, key)
            else:
                copies.append(mount)
        mounts += [volume_mount(name, target) for target, name in volumes.items()]
        return ContainerFiles(tuple(mounts), tuple(copies), volumes)

    async def _init_volume(self) -> str:
        place = PurePosixPath(INIT)
        name = f"plimsoll-init-{self._init.digest[:24]}"

        def make(tar: Tar, folder: str) -> None:
            add_file(tar, self._init.path, f"{folder}/{place.name}", 0o555)

        await self._volumes.ensure(name, make)
        return name

    async def _volume(self, mount: Mount, key: str) -> str:
        """The volume with a folder's content; the key names that where there is one."""

        def make(tar: Tar, folder: str) -> None:
            add_tree(tar, ((f"{folder}/{name}", path) for name, path in walk_tree(mount.source)))

        if key:
            # What is staged comes with files of our own making, which change with our version.
            content = f"{__version__} {key} {mount.target}"
            digest = hashlib.sha256(content.encode()).hexdigest()[:24]
        else:
            digest = await asyncio.to_thread(_content_digest, make)
        name = f"plimsoll-assets-{digest}"
        await self._volumes.ensure(name, make)
        return name


def add_file(tar: Tar, source: Path, name: str, mode: int) -> None:
    """Put a file into a tar, as root's, with a mode of its own."""
    member = tarfile.TarInfo(name.lstrip("/"))
    with source.open("rb") as file:
        member.size, member.mode = source.stat().st_size, mode
        tar.addfile(member, file)


class _DigestFile(io.RawIOBase):
    """A file that keeps nothing of what is written to it but its digest."""

    def __init__(self) -> None:
        super().__init__()
        self.sha = hashlib.sha256()

    def write(self, data: "ReadableBuffer", /) -> int:
        self.sha.update(data)
        return memoryview(data).nbytes


def _content_digest(make: WriteTar) -> str:
    digest = _DigestFile()
    with tarfile.open(fileobj=digest, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        make(tar, "")
    return digest.sha.hexdigest()[:24]


def _put_init(init: InitBinary, folder: Path) -> Path:
    """A copy of the init in our own folder, which stays the same while containers use it."""
    folder.mkdir(exist_ok=True)
    remove_leftovers(folder)
    place = folder / f"init-{init.digest[:24]}"
    if not place.exists():
        with tempfile.NamedTemporaryFile(
            dir=folder, prefix=temporary_prefix(), delete=False
        ) as made:
            made.write(init.path.read_bytes())
        new = Path(made.name)
        new.chmod(0o555)
        new.replace(place)
    return place


_PROBE_LIFETIME = 3600.0
_MAX_LINKS = 10
_MAX_READ = 64 << 10


class ImagePaths:
    """Asks the engine once for each image and path, by a container that never runs."""

    def __init__(self, engine: Daemon) -> None:
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
        labels = Labels("shared", "looks", this_process(), time.time() + _PROBE_LIFETIME)
        config = {
            "Image": image,
            "Entrypoint": ["/none"],
            "Labels": to_docker(labels),
            "HostConfig": {"NetworkMode": "none"},
        }
        try:
            await run_to_completion(self._engine.create_container(config, name))
            return {target: await self._holds_something(name, target) for target in targets}
        finally:
            await run_to_completion(self._engine.remove(name))

    async def _holds_something(self, container: str, path: str) -> bool:
        for _ in range(_MAX_LINKS):
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
                if (count := _count_members(seen)) > 1 or len(seen) > _MAX_READ:
                    return count > 1
        return False


def _count_members(start: bytes) -> int:
    """How many members begin in the first bytes of a tar, counted to two."""
    count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(start), mode="r|") as tar:
            while count < 2 and tar.next() is not None:
                count += 1
    except tarfile.TarError:
        pass
    return count
