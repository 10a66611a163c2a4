"""Reads the files of a task, as far as they are text and of a sensible size."""

from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["files_below", "read_text", "relative_name", "requirements_in"]

MAX_BYTES = 1_000_000
MAX_FILES = 400


def read_text(path: Path) -> str | None:
    """The text of a file; None where it is not there, not text, or too big to be a script."""
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
    except OSError:
        return None
    if data is None or b"\0" in data:
        return None
    return data.decode("utf-8-sig", "replace")


def relative_name(path: Path, task_folder: Path) -> str:
    """A path as findings show it: relative to the task's folder."""
    return path.relative_to(task_folder).as_posix()


def files_below(folder: Path, pattern: str) -> Iterator[Path]:
    """Files by name pattern, in a stable order, not more than a grader could sensibly hold."""
    found = (path for path in sorted(folder.rglob(pattern)) if path.is_file())
    for _, path in zip(range(MAX_FILES), found, strict=False):
        yield path


def requirements_in(name: str, folders: Sequence[Path], depth: int = 0) -> tuple[str, ...] | None:
    """What a requirements file asks for; None where the file cannot be found."""
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
