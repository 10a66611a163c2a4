"""Text files of a task: scripts, sources and requirements up to a size limit."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

__all__ = [
    "MAX_FILES",
    "files_below",
    "read_text",
    "relative_name",
    "requirements_in",
    "texts_below",
]

MAX_BYTES = 1_000_000
MAX_FILES = 400
"""The number of files of a folder that are read at most."""


def read_text(path: Path) -> str | None:
    """Return the text of a file; None if it is missing, binary or too large for a script."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None
    if data is None or b"\0" in data:
        return None
    return data.decode("utf-8-sig", "replace")


def relative_name(path: Path, task_folder: Path) -> str:
    """Return a path relative to the task folder, as findings show it."""
    return path.relative_to(task_folder).as_posix()


def files_below(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files whose names match a pattern, sorted."""
    return (path for path in sorted(folder.rglob(pattern)) if path.is_file())


def texts_below(folder: Path, pattern: str) -> Iterator[tuple[Path, str]]:
    """Yield matching files with their texts: of the first `MAX_FILES`, those that are text."""
    for path in islice(files_below(folder, pattern), MAX_FILES):
        if (text := read_text(path)) is not None:
            yield path, text


def requirements_in(name: str, folders: Sequence[Path], depth: int = 0) -> tuple[str, ...] | None:
    """Return the requirements of a requirements file; None if the file is not found."""
    for folder in folders:
        for candidate in (folder / name.lstrip("/"), folder / Path(name).name):
            text = read_text(candidate)
            if text is not None:
                return _requirements(text, folders, depth)
    return None


def _requirements(text: str, folders: Sequence[Path], depth: int) -> tuple[str, ...]:
    found: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        line = line.split(" #")[0].split(" --hash")[0].strip()
        if line.startswith(("-r", "--requirement")) and depth < 5:
            name = line.replace("=", " ").split(None, 1)[-1].removeprefix("-r").strip()
            found += requirements_in(name, folders, depth + 1) or ()
        elif line and not line.startswith(("#", "-", ".", "/")):
            found.append(line)
    return tuple(found)
