"""Void verdicts from exceptions: the one place where an exception becomes a verdict.

An error of Plimsoll's own tree has the cause that the table here names. An unexpected exception is
a bug, unless the disk was full; its traceback goes to `bug.txt` in the trial's folder.
"""

import tempfile
import traceback
from pathlib import Path

from plimsoll.core.errors import (
    AgentError,
    PlimsollError,
    PolicyError,
    SandboxError,
    SetUpError,
    SolutionError,
    TaskError,
    TrajectoryError,
)
from plimsoll.core.file_systems import disk_full_reason
from plimsoll.core.text import safe_text
from plimsoll.trials.verdicts import Cause, Evidence, Void

__all__ = ["void_of"]

_BUG = "bug.txt"
_CAUSES: tuple[tuple[type[PlimsollError], Cause], ...] = (
    (SolutionError, Cause.TASK),
    (TaskError, Cause.TASK),
    (SandboxError, Cause.SANDBOX),
    (SetUpError, Cause.SANDBOX),
    (AgentError, Cause.SANDBOX),
    (PolicyError, Cause.POLICY),
    (TrajectoryError, Cause.SANDBOX),
)


def void_of(error: BaseException, folder: Path | None = None) -> Void:
    """The verdict on a trial that ended in this exception; `folder` is the trial's."""
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return Void(cause, " ".join(str(error).split()))
    folders = () if folder is None else (folder,)
    if full := disk_full_reason(error, *folders, Path(tempfile.gettempdir())):
        return Void(Cause.SANDBOX, full)
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if folder is None:
        return Void(Cause.BUG, reason)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trace = "".join(traceback.format_exception(error))
        (folder / _BUG).write_text(safe_text(trace), "utf-8")
    except OSError as unwritten:
        return Void(Cause.BUG, f"{reason} ({_BUG} not written: {unwritten.strerror})")
    return Void(Cause.BUG, reason, (Evidence("the trace", _BUG),))
