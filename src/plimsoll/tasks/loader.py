"""Loader of task folders. It reads only task.toml; other files are read on demand."""

import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from plimsoll.core.errors import TaskError, UsageError
from plimsoll.core.text import safe_name
from plimsoll.tasks.problems import invalid_values, not_toml, unknown_keys
from plimsoll.tasks.task import Task, make_steps
from plimsoll.tasks.task_file import TaskConfig

__all__ = ["InvalidTask", "LoadedTasks", "find_tasks", "load_task", "load_tasks"]

SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class InvalidTask:
    """A folder with a task.toml that is not a valid task, with its problems."""

    path: Path
    name: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """The tasks below a folder. Invalid tasks are listed, never dropped."""

    tasks: tuple[Task, ...]
    invalid: tuple[InvalidTask, ...]


def load_task(path: Path, name: str | None = None) -> Task:
    """Load one task folder; `TaskError` lists all of its problems."""
    file = path / "task.toml"
    _check_path(path)
    config = _read_config(file)
    try:
        problems = _missing_files(path, config)
    except OSError as error:
        raise TaskError(f"{error.filename}: cannot be read: {error.strerror}") from error
    if problems:
        raise TaskError(*problems)
    return Task(
        path=path,
        name=name or safe_name(path.name or path.resolve().name),
        config=config,
        unknown_keys=unknown_keys(file, config),
        steps=make_steps(path, config),
    )


def load_tasks(root: Path, pattern: str | None = None) -> LoadedTasks:
    """Load the task at `root` or all tasks below it whose names match a glob pattern."""
    paths = find_tasks(root)
    if not paths:
        raise UsageError(_no_tasks_message(root))
    named = list(zip(_unique_names(root, paths), paths, strict=True))
    chosen = [(n, p) for n, p in named if pattern is None or fnmatchcase(n, pattern)]
    if not chosen:
        shown = ", ".join(name for name, _ in named[:SHOWN_NAMES])
        more = f" and {len(named) - SHOWN_NAMES:,} more" if len(named) > SHOWN_NAMES else ""
        raise UsageError(f'{root}: no task name matches "{pattern}"; tasks here: {shown}{more}')
    tasks: list[Task] = []
    invalid: list[InvalidTask] = []
    for name, path in chosen:
        try:
            tasks.append(load_task(path, name))
        except TaskError as error:
            invalid.append(InvalidTask(path, name, error.problems))
    return LoadedTasks(tuple(tasks), tuple(invalid))


def find_tasks(root: Path) -> list[Path]:
    """Return `root` if it is a task, else all task folders below it, sorted; skip dot-folders."""
    return sorted(_walk(root, frozenset()))


def _no_tasks_message(root: Path) -> str:
    if root.is_dir():
        return f"{root}: no task found; a task is a folder with a task.toml"
    if root.exists():
        return f"{root}: not a folder; give a task folder or a folder of tasks"
    return f"{root}: no such folder"


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from error
    if any(entry.name == "task.toml" for entry in entries):
        yield folder
        return
    # Follow links to folders, but not in cycles.
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        if not entry.name.startswith(".") and _is_folder(entry):
            yield from _walk(folder / entry.name, above | {here})


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A dangling link.
        return False


def _unique_names(root: Path, paths: Sequence[Path]) -> list[str]:
    """Folder names; tasks with the same folder name get the path below the root."""
    short = [safe_name(path.name or path.resolve().name) for path in paths]
    shared = {name for name, count in Counter(short).items() if count > 1}
    used = set(short) - shared
    names: list[str] = []
    for name, path in zip(short, paths, strict=True):
        if name in shared:
            name = safe_name(path.relative_to(root).as_posix().replace("/", "__"))
            while name in used:
                name += "_"
            used.add(name)
        names.append(name)
    return names


def _check_path(path: Path) -> None:
    """Check that the path is UTF-8: messages to workers and run files contain it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise TaskError(f"{path}: the folder's name is not UTF-8; rename it") from None


def _read_config(file: Path) -> TaskConfig:
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise TaskError(f"{file}: missing; a task is a folder with a task.toml") from error
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(f"{file}:{line}: not UTF-8 text") from error
    try:
        return TaskConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(not_toml(file, text, error)) from error
    except ValidationError as error:
        raise TaskError(*invalid_values(file, text, error)) from error


def _missing_files(path: Path, config: TaskConfig) -> list[str]:
    if not config.steps:
        return _missing_instruction(path)
    problems: list[str] = []
    for step in config.steps:
        folder = path / "steps" / step.name
        if folder.is_dir():
            problems += _missing_instruction(folder)
        else:
            problems.append(f'{folder}: missing; task.toml names a step "{step.name}"')
    return problems


def _missing_instruction(folder: Path) -> list[str]:
    file = folder / "instruction.md"
    return [] if file.is_file() else [f"{file}: missing; it tells the agent what to do"]
