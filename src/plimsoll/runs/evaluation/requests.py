"""`request.json`: the options of `plimsoll eval` or `plimsoll validate`, stored to resume it."""

from pathlib import Path
from typing import TypeVar

import msgspec

from plimsoll.core.errors import UsageError
from plimsoll.runs.files.directory import RunDirectory, write_whole

__all__ = ["can_resume", "command_of", "read_request", "write_request"]

_RESUMABLE = ("run", "eval", "validate")
_T = TypeVar("_T")


class _File(msgspec.Struct):
    command: str
    request: msgspec.Raw


def write_request(directory: RunDirectory, command: str, request: object) -> None:
    """Write the request of a command, a dataclass, with its paths made absolute."""
    data = msgspec.json.encode({"command": command, "request": request}, enc_hook=_write_path)
    write_whole(directory.request, msgspec.json.format(data, indent=2) + b"\n", lasting=True)


def command_of(directory: RunDirectory) -> str:
    """The command of a run directory: `eval`, `validate`, `trl`, `verl`; else `run`."""
    return _read(directory).command if directory.request.exists() else "run"


def can_resume(directory: RunDirectory) -> bool:
    """Whether `plimsoll resume` can continue the run. A trainer of TRL or verl starts a new one."""
    return command_of(directory) in _RESUMABLE


def read_request(directory: RunDirectory, kind: type[_T]) -> _T:
    """The request of a run directory."""
    request = _read(directory).request
    try:
        return msgspec.json.decode(request, type=kind, dec_hook=_read_path)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{directory.request}: not a request ({error})") from error


def _read(directory: RunDirectory) -> _File:
    try:
        return msgspec.json.decode(directory.request.read_bytes(), type=_File)
    except OSError as error:
        raise UsageError(f"cannot read {directory.request}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{directory.request}: not a request ({error})") from error


def _write_path(value: object) -> str:
    assert isinstance(value, Path), f"{value!r} is not a path"
    return str(value.absolute())


def _read_path(kind: type[object], value: object) -> object:
    if issubclass(kind, Path):
        return Path(str(value))
    raise NotImplementedError(kind)
