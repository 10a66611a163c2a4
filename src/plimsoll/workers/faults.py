"""What becomes of a ticket whose place raised, though it promised not to.

A full disk is nobody's fault but the disk's. Anything else is one of ours, and its trace is kept
beside what the trial wrote.
"""

import tempfile
import traceback
from pathlib import Path

from plimsoll.core.file_systems import disk_full_reason
from plimsoll.core.text import safe_text
from plimsoll.trials.verdicts import Cause, Evidence, Void

__all__ = ["verdict_on"]

_BUG = "bug.txt"


def verdict_on(error: BaseException, folder: str) -> Void:
    """The verdict on a ticket that ended in this error; `folder` is where its trial writes."""
    places = [Path(folder)] if folder else []
    if full := disk_full_reason(error, *places, Path(tempfile.gettempdir())):
        return Void(Cause.SANDBOX, full)
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if not folder:
        return Void(Cause.BUG, reason)
    try:
        places[0].mkdir(parents=True, exist_ok=True)
        trace = "".join(traceback.format_exception(error))
        (places[0] / _BUG).write_text(safe_text(trace), "utf-8")
    except OSError as unwritten:
        return Void(Cause.BUG, f"{reason} ({_BUG} not written: {unwritten.strerror})")
    return Void(Cause.BUG, reason, (Evidence("the trace", _BUG),))
