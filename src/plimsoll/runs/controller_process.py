"""The controller process of a run: `controller.json` names it, to find, query and stop it."""

import logging
import os
import select
import signal
from pathlib import Path

import msgspec

from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.core.ids import Owner
from plimsoll.ledger.journal.location import (
    LOCK,
    POINTER,
    find,
    has_ledger,
)
from plimsoll.ledger.journal.lock import is_held
from plimsoll.runs.files.directory import CONFIG, PART, RUNS, RunDirectory, write_whole
from plimsoll.sandboxes.host.owners import (
    host_name,
    is_alive,
    is_here,
    this_process,
)
from plimsoll.workers.worker import scratch

__all__ = [
    "check_idle",
    "check_not_elsewhere",
    "claim",
    "controller",
    "end_run",
    "find_run",
    "leftovers",
    "look_for_run",
    "release",
]

_SHOWN_RUNS = 10
_SIGNAL_INTERVAL_SECONDS = 0.3
"""The interval between two signals: without it they may be seen as one."""
_FIRST_MESSAGE_SECONDS = 15.0
"""The time before the first message about waiting; each further interval is four times as long."""

_log = logging.getLogger(__name__)


def find_run(name: str) -> RunDirectory:
    """The run with this name under `runs/`, or in this folder. Raises if there is none."""
    if (found := look_for_run(name)) is None:
        problem = f"no run is called {name!r}" if name.strip() else "the name of the run is empty"
        raise UsageError(f"{problem}; {_runs_here()}")
    return found


def look_for_run(name: str) -> RunDirectory | None:
    """The run with this name under `runs/`, or in this folder; None if there is none.

    Raises if the name is ambiguous.
    """
    found = [path for path in _candidates(name) if (path / CONFIG).is_file() and has_ledger(path)]
    if len({path.resolve() for path in found}) > 1:
        raise UsageError(f"{name!r} matches two runs: write ./{found[0]} or {found[1]}")
    return RunDirectory(found[0]) if found else None


def _candidates(name: str) -> tuple[Path, ...]:
    if not name.strip():
        return ()
    return (Path(name),) if "/" in name else (Path(name), RUNS / name)


def leftovers(directory: RunDirectory) -> list[Path]:
    """Files that a killed run left in its directory, and its workers elsewhere on this host, and
    that no process will read."""
    files = [*sorted(directory.path.glob(f"*{PART}")), directory.controller]
    return [*filter(Path.exists, files), *scratch.leftovers(directory.name)]


def claim(directory: RunDirectory) -> None:
    """Write this process to `controller.json`. The ledger's lock excludes other processes."""
    write_whole(directory.controller, msgspec.json.encode(this_process()), lasting=True)


def release(directory: RunDirectory) -> None:
    directory.controller.unlink(missing_ok=True)


def controller(directory: RunDirectory) -> Owner | None:
    """The live controller of the run, or one on another host that may be alive; otherwise None."""
    try:
        owner = msgspec.json.decode(directory.controller.read_bytes(), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return None
    if is_here(owner):
        return owner if is_alive(owner) else None
    # A removed container looks like another host forever; its lock was released with its process.
    return None if _is_held(directory) is False else owner


def _is_held(directory: RunDirectory) -> bool | None:
    """True if a process holds the run's ledger; None if that cannot be determined on this host."""
    if not (directory.path / POINTER).exists():
        return is_held(directory.path / LOCK)
    try:
        return is_held(find(directory.path).lock)
    except LedgerError:
        return None  # the ledger is on another host


def check_idle(directory: RunDirectory) -> None:
    """Refuse a run whose controller is alive, or may be."""
    if (owner := controller(directory)) is None:
        return
    problem = f"{directory.path} is running: pid {owner.pid} on {host_name(owner)}"
    if is_here(owner):
        raise UsageError(f"{problem}; `plimsoll stop {directory.path}` ends it")
    raise UsageError(f"{problem}: {_elsewhere(directory)}")


def check_not_elsewhere(directory: RunDirectory) -> None:
    """Refuse a run whose controller is, or may be, on another host: its lock may be there."""
    owner = controller(directory)
    if owner is not None and not is_here(owner):
        check_idle(directory)


def end_run(owner: Owner, directory: RunDirectory, *, now: bool) -> None:
    """Stop the controller of a run and wait for its end. `now`: cancel running trials."""
    if not is_here(owner):
        raise UsageError(
            f"{directory.path} is driven by pid {owner.pid} on {host_name(owner)}: "
            f"{_elsewhere(directory)}"
        )
    try:
        # A pidfd: the pid could be reused before the signal is sent.
        descriptor = os.pidfd_open(owner.pid)
    except OSError:
        return  # it has just ended
    try:
        if is_alive(owner):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            # A process stopped by Ctrl-Z would not handle the signal.
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            if now and not _ends(descriptor, within=_SIGNAL_INTERVAL_SECONDS):
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            _wait(descriptor, owner, directory)
    except ProcessLookupError:
        return
    except PermissionError:
        raise UsageError(
            f"pid {owner.pid}, which drives {directory.path}, belongs to another user"
        ) from None
    finally:
        os.close(descriptor)


def _elsewhere(directory: RunDirectory) -> str:
    """Advice about a process on another host."""
    if _is_held(directory):
        return "stop it there"
    return (
        "stop it there; this host cannot check whether it is alive: if its host or container is "
        f"gone, remove {directory.controller}"
    )


def _wait(process: int, owner: Owner, directory: RunDirectory) -> None:
    """Wait without a time limit for the process to end. Logs a message from time to time."""
    within = _FIRST_MESSAGE_SECONDS
    while not _ends(process, within=within):
        _log.warning(
            "%s: still waiting for pid %d to end; `plimsoll status %s` shows its running trials; "
            "`kill -9 %d` ends it at once, and the run can still be resumed",
            *(directory.path, owner.pid, directory.path, owner.pid),
        )
        within *= 4


def _ends(process: int, *, within: float) -> bool:
    """Wait for the end of a process; false after the timeout."""
    return bool(select.select([process], [], [], within)[0])


def _runs_here() -> str:
    names = sorted(path.parent.name for path in RUNS.glob(f"*/{CONFIG}"))
    shown = ", ".join(names[-_SHOWN_RUNS:])
    more = f" and {len(names) - _SHOWN_RUNS:,} more" if len(names) > _SHOWN_RUNS else ""
    return f"runs here: {shown}{more}" if names else f"there is no run in {RUNS}/"
