"""Tars that are made while they are sent, so that none is ever held whole."""

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
"""A name in a tar, and the file or folder of this host that it stands for."""

_PIECE = 1 << 18
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


@asynccontextmanager
async def tar_stream(
    make: Callable[[Tar], None],
) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
    """The pieces of a tar that `make` writes in a thread, which waits for whoever reads them.

    Whoever sends it sees only that it ended early: a file that could not be read is a
    `TransferError` here.
    """
    failures: list[OSError | tarfile.TarError] = []
    pieces = _pieces(make, failures)
    try:
        yield pieces
    except SandboxError:
        if not failures:
            raise
        raise TransferError(_unreadable(failures[0])) from failures[0]
    finally:
        await pieces.aclose()


async def _pieces(
    make: Callable[[Tar], None], failures: list[OSError | tarfile.TarError]
) -> AsyncGenerator[bytes, None]:
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIECE)
    file = os.fdopen(reading, "rb", 0)
    work = asyncio.ensure_future(asyncio.to_thread(_write_tar, make, writing))
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        while piece := await reader.read(_PIECE):
            yield piece
        await work
    except (OSError, tarfile.TarError) as error:
        failures.append(error)
        raise
    finally:
        # A thread that still writes now finds nobody at the other end, and stops.
        transport.close()
        if not work.done():
            work.add_done_callback(lambda done: done.cancelled() or done.exception())


def _write_tar(make: Callable[[Tar], None], writing: int) -> None:
    with (
        os.fdopen(writing, "wb") as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as tar,
    ):
        make(tar)


def _unreadable(error: OSError | tarfile.TarError) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"a file changed while it was read: {error}"


def sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name."""
    with os.scandir(folder) as found:
        return sorted(found, key=lambda entry: entry.name)


def walk_tree(folder: Path) -> Iterable[Entry]:
    """Everything below a folder, in an order that is always the same."""
    for entry in sorted_entries(folder):
        path = Path(entry.path)
        yield entry.name, path
        if entry.is_dir(follow_symlinks=False):
            yield from ((f"{entry.name}/{name}", inner) for name, inner in walk_tree(path))


def add_tree(tar: Tar, entries: Iterable[Entry]) -> None:
    """Put files and folders into a tar as root's; what is neither file, folder nor link is not."""
    for name, path in entries:
        if stat.S_IFMT(path.lstat().st_mode) not in _KINDS:
            continue
        info = tar.gettarinfo(path, name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.islnk():
            # A second name of a file: whoever unpacks it gets a file of its own.
            info.type, info.linkname = tarfile.REGTYPE, ""
            info.size = path.lstat().st_size
        if info.isreg():
            with path.open("rb") as file:
                tar.addfile(info, file)
        else:
            tar.addfile(info)


def add_text(tar: Tar, name: str, text: bytes) -> None:
    """Put a small file into a tar."""
    info = tarfile.TarInfo(name)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
