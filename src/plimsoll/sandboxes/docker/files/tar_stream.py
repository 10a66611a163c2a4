"""Tars that are sent while they are written, so that none is held in memory."""

import asyncio
import io
import os
import stat
import tarfile
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from plimsoll.core.errors import SandboxError, TransferError

__all__ = [
    "Entry",
    "Tar",
    "add_text",
    "add_tree",
    "sorted_entries",
    "tar_stream",
    "walk_tree",
]

Tar = tarfile.TarFile
Entry = tuple[str, Path]
"""A name in a tar, and the path of its file or folder on this host."""

_CHUNK = 1 << 18
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


@asynccontextmanager
async def tar_stream(
    write: Callable[[Tar], None],
) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
    """The chunks of a tar that `write` writes in a thread, no faster than they are read.

    The sender of an aborted tar fails with a `SandboxError`; if a file could not be read, that
    error is replaced by a `TransferError` with the reason.
    """
    failures: list[OSError | tarfile.TarError] = []
    chunks = _chunks(write, failures)
    try:
        yield chunks
    except SandboxError:
        if not failures:
            raise
        raise TransferError(_unreadable(failures[0])) from failures[0]
    finally:
        await chunks.aclose()


async def _chunks(
    write: Callable[[Tar], None], failures: list[OSError | tarfile.TarError]
) -> AsyncGenerator[bytes, None]:
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    file = os.fdopen(reading, "rb", 0)
    work = asyncio.ensure_future(asyncio.to_thread(_write_tar, write, writing))
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        while chunk := await reader.read(_CHUNK):
            yield chunk
        await work
    except (OSError, tarfile.TarError) as error:
        failures.append(error)
        raise
    finally:
        # A thread that is still writing gets a broken pipe and stops.
        transport.close()
        if not work.done():
            work.add_done_callback(lambda done: done.cancelled() or done.exception())


def _write_tar(write: Callable[[Tar], None], writing: int) -> None:
    with (
        os.fdopen(writing, "wb") as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK) as tar,
    ):
        write(tar)


def _unreadable(error: OSError | tarfile.TarError) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"a file changed while it was read: {error}"


def sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, by name."""
    with os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)


def walk_tree(folder: Path) -> Iterable[Entry]:
    """Everything below a folder, in a stable order."""
    for entry in sorted_entries(folder):
        path = Path(entry.path)
        yield entry.name, path
        if entry.is_dir(follow_symlinks=False):
            yield from ((f"{entry.name}/{name}", inner) for name, inner in walk_tree(path))


def add_tree(tar: Tar, entries: Iterable[Entry]) -> None:
    """Add files, folders and links to a tar, owned by root; other kinds are skipped."""
    for name, path in entries:
        if stat.S_IFMT(path.lstat().st_mode) not in _KINDS:
            continue
        info = tar.gettarinfo(path, name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.islnk():
            # A hard link is stored as a file of its own.
            info.type, info.linkname = tarfile.REGTYPE, ""
            info.size = path.lstat().st_size
        if info.isreg():
            with path.open("rb") as file:
                tar.addfile(info, file)
        else:
            tar.addfile(info)


def add_text(tar: Tar, name: str, text: bytes) -> None:
    """Add a small file to a tar."""
    info = tarfile.TarInfo(name)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
