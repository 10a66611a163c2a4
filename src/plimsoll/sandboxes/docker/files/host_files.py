"""Files of this host for containers: the init, staged assets, other mounts.

A daemon that sees this host's files mounts them. For any other daemon they are copied once into
named volumes.
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
    """The files of this host for one container."""

    mounts: tuple[dict[str, object], ...]
    copies: tuple[Mount, ...] = ()
    """Files to copy into the container before it starts; a volume cannot be a single file."""
    volumes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of the volumes among the mounts, by mount point."""


class HostFiles:
    """Makes files of this host available to one daemon's containers."""

    def __init__(self, daemon: Daemon, init: InitBinary, home: Path | None) -> None:
        self._daemon = daemon
        self._init = init
        self._home = home
        self._shared_init: Path | None = None
        """The path of the init on this host; None if the daemon does not see this host's files."""
        self.volumes = ContentVolumes(daemon, self.ensure_image)
        self._targets = ImagePaths(daemon)
        self._storage_lock = asyncio.Lock()
        self._limits_storage: bool | None = None

    async def open(self) -> None:
        """Find out whether the daemon sees this host's files. Call it before `prepare`."""
        await self.ensure_image()
        info = await self._daemon.info()
        # Under SELinux a container may only use files labelled for containers.
        closed = any("selinux" in option for option in info.security_options or ())
        if self._daemon.endpoint.is_local and not closed:
            self._shared_init = await self._find_shared()

    async def ensure_image(self) -> str:
        """The image that contains only the init; created if missing. Returns its name."""
        name = f"plimsoll/init:{self._init.digest}"
        if await self._daemon.image(name) is None:
            labels = Labels("shared", "init", this_process(), time.time() + _IMAGE_LIFETIME)
            source = self._init.path
            async with tar_stream(lambda tar: add_file(tar, source, INIT, 0o555)) as tar:
                await self._daemon.import_image(tar, name, to_docker(labels, shared=True))
        return name

    async def _find_shared(self) -> Path | None:
        """The init in Plimsoll's home, if the daemon can mount a new file from there."""
        try:
            folder = Home.open(self._home).path / "docker"
            init = await asyncio.to_thread(_install_init, self._init, folder)
        except (SandboxError, OSError):
            return None
        with tempfile.NamedTemporaryFile(dir=folder, prefix=temporary_prefix()) as nonce:
            return init if await self._sees(nonce.name) else None

    async def _sees(self, path: str) -> bool:
        return await self._accepts({"Mounts": [bind_mount(path, "/seen")]})

    async def limits_storage(self) -> bool:
        """Whether the daemon's storage driver can limit a container's disk usage; asked once."""
        async with self._storage_lock:
            if self._limits_storage is None:
                self._limits_storage = await self._accepts({"StorageOpt": {"size": "1g"}})
            return self._limits_storage

    async def _accepts(self, setting: dict[str, object]) -> bool:
        """Whether the daemon creates a container with this HostConfig; it is never started."""
        name = f"plimsoll-probe-{short_id()}"
        labels = Labels("shared", "probe", this_process(), time.time() + 600)
        config = {
            "Image": await self.ensure_image(),
            "Entrypoint": [INIT],
            "Labels": to_docker(labels),
            "HostConfig": {"NetworkMode": "none", **setting},
        }
        try:
            await run_to_completion(self._daemon.create_container(config, name))
        except DaemonError:
            return False
        finally:
            await run_to_completion(self._daemon.remove(name))
        return True

    async def prepare(self, image: str, spec: SandboxSpec) -> ContainerFiles:
        """The files for a sandbox of this image: the init, and the mounts that apply."""
        requested = [(mount, mount.key) for mount in spec.mounts]
        requested += [(mount, spec.supplies.key) for mount in spec.supplies.mounts]
        optional = {mount.target for mount, _ in requested if mount.unless_there}
        occupied = await self._targets.occupied(image, optional)
        mounts, copies = list[dict[str, object]](), list[Mount]()
        volumes: dict[str, str] = {}
        if self._shared_init is not None:
            mounts.append(bind_mount(str(self._shared_init), INIT))
        else:
            volumes[str(PurePosixPath(INIT).parent)] = await self._init_volume()
        for mount, key in requested:
            if mount.unless_there and mount.target in occupied:
                continue
            if not mount.source.exists():
                raise SandboxUnavailable(f"{mount.source} does not exist, so it cannot be mounted")
            if self._shared_init is not None:
                mounts.append(bind_mount(str(mount.source.absolute()), mount.target))
            elif mount.source.is_dir():
                volumes[mount.target] = await self._volume(mount, key)
            else:
                copies.append(mount)
        mounts += [volume_mount(name, target) for target, name in volumes.items()]
        return ContainerFiles(tuple(mounts), tuple(copies), volumes)

    async def _init_volume(self) -> str:
        path = PurePosixPath(INIT)
        name = f"plimsoll-init-{self._init.digest[:24]}"

        def write(tar: Tar, folder: str) -> None:
            add_file(tar, self._init.path, f"{folder}/{path.name}", 0o555)

        await self.volumes.ensure(name, write)
        return name

    async def _volume(self, mount: Mount, key: str) -> str:
        """The volume with a folder's content, named by the key or else by a digest."""

        def write(tar: Tar, folder: str) -> None:
            add_tree(tar, ((f"{folder}/{name}", path) for name, path in walk_tree(mount.source)))

        if key:
            # Staged assets include generated files, which may change with the version.
            content = f"{__version__} {key} {mount.target}"
            digest = hashlib.sha256(content.encode()).hexdigest()[:24]
        else:
            digest = await asyncio.to_thread(_content_digest, write)
        name = f"plimsoll-assets-{digest}"
        await self.volumes.ensure(name, write)
        return name


def add_file(tar: Tar, source: Path, name: str, mode: int) -> None:
    """Add a file to a tar, owned by root, with the given mode."""
    member = tarfile.TarInfo(name.lstrip("/"))
    with source.open("rb") as file:
        member.size, member.mode = source.stat().st_size, mode
        tar.addfile(member, file)


class _DigestFile(io.RawIOBase):
    """A file object that only computes the digest of the written data."""

    def __init__(self) -> None:
        super().__init__()
        self.sha = hashlib.sha256()

    def write(self, data: "ReadableBuffer", /) -> int:
        self.sha.update(data)
        return memoryview(data).nbytes


def _content_digest(write: WriteTar) -> str:
    digest = _DigestFile()
    with tarfile.open(fileobj=digest, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        write(tar, "")
    return digest.sha.hexdigest()[:24]


def _install_init(init: InitBinary, folder: Path) -> Path:
    """Copy the init into Plimsoll's home, under a name with its digest."""
    folder.mkdir(exist_ok=True)
    remove_leftovers(folder)
    path = folder / f"init-{init.digest[:24]}"
    if not path.exists():
        with tempfile.NamedTemporaryFile(
            dir=folder, prefix=temporary_prefix(), delete=False
        ) as made:
            made.write(init.path.read_bytes())
        new = Path(made.name)
        new.chmod(0o555)
        new.replace(path)
    return path


_PROBE_LIFETIME = 3600.0
_MAX_LINKS = 10
_MAX_READ = 64 << 10


class ImagePaths:
    """Checks paths of images, once each, through a container that never runs."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._results: dict[str, dict[str, bool]] = {}
        self._image_locks: dict[str, asyncio.Lock] = {}

    async def occupied(self, image: str, targets: Iterable[str]) -> frozenset[str]:
        """The given paths at which the image has a file or a folder that is not empty."""
        requested = set(targets)
        if not requested:
            return frozenset()
        async with self._image_locks.setdefault(image, asyncio.Lock()):
            results = self._results.setdefault(image, {})
            if missing := requested - results.keys():
                results |= await self._ask(image, missing)
        return frozenset(target for target in requested if results[target])

    async def _ask(self, image: str, targets: Iterable[str]) -> dict[str, bool]:
        name = f"plimsoll-probe-{short_id()}"
        labels = Labels("shared", "probe", this_process(), time.time() + _PROBE_LIFETIME)
        config = {
            "Image": image,
            "Entrypoint": ["/none"],
            "Labels": to_docker(labels),
            "HostConfig": {"NetworkMode": "none"},
        }
        try:
            await run_to_completion(self._daemon.create_container(config, name))
            return {target: await self._holds_something(name, target) for target in targets}
        finally:
            await run_to_completion(self._daemon.remove(name))

    async def _holds_something(self, container: str, path: str) -> bool:
        for _ in range(_MAX_LINKS):
            found = await self._daemon.stat_archive(container, path)
            if found is None:
                return False
            if not found.is_link:
                return not found.is_folder or await self._is_full(container, path)
            path = found.link_target
        return False

    async def _is_full(self, container: str, path: str) -> bool:
        """Whether the tar of a folder has a second member; the rest is not read."""
        seen = b""
        async with self._daemon.get_archive(container, f"{path.rstrip('/')}/") as pieces:
            async for piece in pieces:
                seen += piece
                if (count := _count_members(seen)) > 1 or len(seen) > _MAX_READ:
                    return count > 1
        return False


def _count_members(start: bytes) -> int:
    """The number of members that start in the first bytes of a tar, at most two."""
    count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(start), mode="r|") as tar:
            while count < 2 and tar.next() is not None:
                count += 1
    except tarfile.TarError:
        pass
    return count
