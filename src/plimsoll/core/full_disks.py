"""Whether an error says that a file system of this host is full, and which one."""

import contextlib
import errno
import os
from pathlib import Path
from typing import cast

__all__ = ["why_full"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


def why_full(error: BaseException, *places: Path) -> str:
    """Which file system is full, and what to do; empty where that is not what went wrong.

    An error of writing does not say where: it is one of `places` then, the first if none shows it.
    No path of a trial is in it: that all met the same is seen by that all say the same.
    """
    if (found := _no_space(error)) is None:
        return ""
    named = found.filename2 or found.filename  # of two, the second is written
    if isinstance(named, (str, bytes)):
        places = (Path(os.fsdecode(named)),)
    if not places:
        return f"{found.strerror}: make room where it is written to"
    where = next(filter(_is_full, places), places[0])
    return (
        f"the file system at {_mount(where)} is full ({found.strerror}): make room there, by "
        "removing old runs or with plimsoll clean --expired"
    )


def _no_space(error: BaseException) -> OSError | None:
    """What says that there is no room, where nothing else went wrong beside it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        found = [_no_space(one) for one in group.exceptions]
        return found[0] if all(found) else None
    return error if isinstance(error, OSError) and error.errno in _FULL else None


def _is_full(place: Path) -> bool:
    with contextlib.suppress(OSError):
        found = os.statvfs(_existing(place))
        return not found.f_bavail or (found.f_files > 0 and not found.f_favail)
    return False


def _mount(place: Path) -> Path:
    place = _existing(place)
    return next((path for path in (place, *place.parents) if path.is_mount()), place)


def _existing(place: Path) -> Path:
    place = place.absolute()
    return next((path for path in (place, *place.parents) if path.exists()), place)
