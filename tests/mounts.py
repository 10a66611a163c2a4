"""File systems that tests mount: small ones to fill up, and ones of a certain kind."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parts import need

__all__ = ["ext4", "mounted", "resize", "tmpfs"]


@contextmanager
def mounted(folder: Path, *words: str | Path) -> Iterator[Path]:
    """A file system on a folder, mounted with these words of `mount` until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", *words, folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of this size."""
    with mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield folder


@contextmanager
def ext4(folder: Path, megabytes: int, *features: str, options: str = "loop") -> Iterator[Path]:
    """A new ext4 of this size, in a file beside the folder."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    _run("mkfs.ext4", "-q", "-F", *features, image)
    with mounted(folder, "-o", options, image):
        yield folder


def resize(folder: Path, size: str) -> None:
    """Change the size of a mounted tmpfs."""
    _run("mount", "-o", f"remount,size={size}", folder)


def _run(*command: str | Path) -> None:
    """Run a command that only root can run. Skips the test if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    need("mount", done.stderr.strip() or "it failed" if done.returncode else None)
