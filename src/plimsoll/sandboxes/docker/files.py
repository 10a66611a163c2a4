"""How the engine comes by files of this host: the init, staged assets, other mounts.

An engine that sees this host's files mounts them as they are. For any other they are copied
once into named volumes.
"""

import asyncio
import hashlib
import io
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from plimsoll import __version__
from plimsoll.core.errors import SandboxError, SandboxUnavailable
from plimsoll.core.ids import Labels, short_id
from plimsoll.core.waiting import to_the_end
from plimsoll.sandboxes.container.binary import InitBinary
from plimsoll.sandboxes.docker.containers import INIT, bind, volume
from plimsoll.sandboxes.docker.engine import Engine
from plimsoll.sandboxes.docker.errors import EngineError
from plimsoll.sandboxes.docker.labels import to_engine
from plimsoll.sandboxes.docker.targets import Targets
from plimsoll.sandboxes.docker.tars import Tar, add_tree, made_in_a_thread, walk_tree
from plimsoll.sandboxes.docker.volumes import Make, Volumes
from plimsoll.sandboxes.local.home import Home
from plimsoll.sandboxes.owners import myself
from plimsoll.sandboxes.protocol import Mount, SandboxSpec
from plimsoll.sandboxes.temporary import prefix, remove_leftovers

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Carried", "Files", "add_file"]

_LIFE = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Carried:
    """What a container gets of this host."""

    mounts: tuple[dict[str, object], ...]
    copies: tuple[Mount, ...] = ()
    """Files to be put into the container before it starts: no volume is a single file."""
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of those among the mounts that are volumes, by their places."""


class Files:
    """This host's files, for one engine."""

    def __init__(self, engine: Engine, init: InitBinary, home: Path | None) -> None:
        self._engine = engine
        self._init = init
        self._home = home
        self._shared: Path | None = None
        """The init where the engine sees it; None where it does not see this host's files."""
        self._volumes = Volumes(engine, self.ensure_image)
        self._targets = Targets(engine)
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
            labels = Labels("shared", "init", myself(), time.time() + _LIFE)
            source = self._init.path
            async with made_in_a_thread(lambda tar: add_file(tar, source, INIT, 0o555)) as tar:
                await self._engine.import_image(tar, name, to_engine(labels, shared=True))
        return name

    async def _find_shared(self) -> Path | None:
        """The init in our own folder, if the engine finds a file there by its name."""
        try:
            folder = Home.open(self._home).path / "docker"
            init = await asyncio.to_thread(_put_init, self._init, folder)
        except (SandboxError, OSError):
            return None
        with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix()) as nonce:
            return init if await self._sees(nonce.name) else None

    async def _sees(self, path: str) -> bool:
        return await self._takes({"Mounts": [bind(path, "/seen")]})

    async def limit_storage(self) -> bool:
        """Whether the engine's storage driver can limit what a container writes; asked once."""
        async with self._turn:
            if self._limits_storage is None:
                self._limits_storage = await self._takes({"StorageOpt": {"size": "1g"}})
            return self._limits_storage

    async def _takes(self, setting: dict[str, object]) -> bool:
        """Whether the engine creates a container with a setting. It never runs."""
        name = f"plimsoll-looks-{short_id()}"
        labels = Labels("shared", "looks", myself(), time.time() + 600)
        config = {
            "Image": await self.ensure_image(),
            "Entrypoint": [INIT],
            "Labels": to_engine(labels),
            "HostConfig": {"NetworkMode": "none", **setting},
        }
        try:
            await to_the_end(self._engine.create_container(config, name))
        except EngineError:
            return False
        finally:
            await to_the_end(self._engine.remove(name))
        return True

    async def carry(self, image: str, spec: SandboxSpec) -> Carried:
        """What a sandbox of this image gets: the init, and the mounts that apply."""
        wanted = [(mount, mount.key) for mount in spec.mounts]
        wanted += [(mount, spec.supplies.key) for mount in spec.supplies.mounts]
        modest = {mount.target for mount, _ in wanted if mount.unless_there}
        taken = await self._targets.taken(image, modest)
        mounts, copies = list[dict[str, object]](), list[Mount]()
        volumes: dict[str, str] = {}
        if self._shared is not None:
            mounts.append(bind(str(self._shared), INIT))
        else:
            volumes[str(PurePosixPath(INIT).parent)] = await self._init_volume()
        for mount, key in wanted:
            if mount.unless_there and mount.target in taken:
                continue
            if not mount.source.exists():
                raise SandboxUnavailable(f"{mount.source} is not there, so it cannot be mounted")
            if self.are_shared:
                mounts.append(bind(str(mount.source.absolute()), mount.target))
            elif mount.source.is_dir():
                volumes[mount.target] = await self._volume(mount, key)
            else:
                copies.append(mount)
        mounts += [volume(name, target) for target, name in volumes.items()]
        return Carried(tuple(mounts), tuple(copies), volumes)

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
            digest = await asyncio.to_thread(_digest_of, make)
        name = f"plimsoll-assets-{digest}"
        await self._volumes.ensure(name, make)
        return name


def add_file(tar: Tar, source: Path, name: str, mode: int) -> None:
    """Put a file into a tar, as root's, with a mode of its own."""
    member = tarfile.TarInfo(name.lstrip("/"))
    with source.open("rb") as file:
        member.size, member.mode = source.stat().st_size, mode
        tar.addfile(member, file)


class _Digest(io.RawIOBase):
    """A file that keeps nothing of what is written to it but its digest."""

    def __init__(self) -> None:
        super().__init__()
        self.sha = hashlib.sha256()

    def write(self, data: "ReadableBuffer", /) -> int:
        self.sha.update(data)
        return memoryview(data).nbytes


def _digest_of(make: Make) -> str:
    digest = _Digest()
    with tarfile.open(fileobj=digest, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        make(tar, "")
    return digest.sha.hexdigest()[:24]


def _put_init(init: InitBinary, folder: Path) -> Path:
    """A copy of the init in our own folder, which stays the same while containers use it."""
    folder.mkdir(exist_ok=True)
    remove_leftovers(folder)
    place = folder / f"init-{init.digest[:24]}"
    if not place.exists():
        with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix(), delete=False) as made:
            made.write(init.path.read_bytes())
        new = Path(made.name)
        new.chmod(0o555)
        new.replace(place)
    return place
