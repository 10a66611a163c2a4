"""Lock: one writer of a run's ledger, for as long as its process lives."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

import msgspec

from plimsoll.core.errors import LedgerError
from plimsoll.core.ids import Owner

__all__ = ["Lock", "is_held"]

_TRIES = 10
_BETWEEN_SECONDS = 0.03
"""Between two tries: `is_held` takes the lock for a moment."""

_held: set[int] = set()


def _release_in_child() -> None:
    """Release it in a forked child, which would hold it after its parent is dead."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


class Lock:
    """Held until it is released or its process dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(descriptor)

    @classmethod
    def take(cls, path: Path, owner: Owner) -> "Lock":
        """Take the lock, or raise with the name of its holder."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LedgerError(f"cannot open {path}: {error.strerror}") from None
        try:
            is_taken = _is_taken(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise LedgerError(
                f"cannot lock {path}: {error.strerror}: its file system has no locks; name a "
                "folder on a local disk with [storage] ledger"
            ) from None
        if not is_taken:
            held = _holder(descriptor)
            os.close(descriptor)
            raise LedgerError(
                f"the ledger {path.with_suffix('.db')} is held by {held}: "
                "one process writes it at a time; end that one first"
            )
        with contextlib.suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(owner), 0)
        return cls(descriptor)

    def release(self) -> None:
        if self._descriptor >= 0:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def is_held(path: Path) -> bool | None:
    """Whether a process on any host holds it; None if that cannot be determined."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None  # a file system without locks
    finally:
        os.close(descriptor)
    return False


def _is_taken(descriptor: int) -> bool:
    """Try to take the lock of an open file."""
    for tries_left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries_left:
                time.sleep(_BETWEEN_SECONDS)
        else:
            return True
    return False


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        owner = msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Owner)
        return f"process {owner.pid} on {owner.host}"
    return "another process"
