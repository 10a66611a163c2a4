"""When a checkpoint is written, and what becomes of a run that cannot write one.

A checkpoint that cannot be written leaves the one before as it is. The step is committed all
the same, and it is tried again with the next; after a few times in a row the run stops, for a
crash would cost more and more.
"""

import errno
import logging
from pathlib import Path

from safetensors import SafetensorError

from plimsoll.core.errors import CheckpointError
from plimsoll.core.versions import Version
from plimsoll.runs.rollouts import Save
from plimsoll.training.learner.protocol import LearnerProtocol
from plimsoll.training.models import is_out_of_memory

__all__ = ["Checkpointer"]

_TRIES = 3
_log = logging.getLogger(__name__)


class Checkpointer:
    """Keeps the checkpoints of one run. `kept` is the version of the last."""

    def __init__(
        self, learner: LearnerProtocol, *, every: int, last: int | None, kept: Version | None
    ) -> None:
        self.kept = kept
        self.failures = 0
        """In a row."""
        self._learner = learner
        self._every = every
        self._last = last

    @property
    def gave_up(self) -> bool:
        """Whether the run was told to stop for it."""
        return self.failures >= _TRIES

    def due(self, step: int) -> Save | None:
        """What writes the checkpoint that a step wants, if it wants one."""
        due = self.failures > 0 or step % self._every == 0 or step == self._last
        return self.save if due else None

    def save(self, folder: Path) -> None:
        """Write all that training goes on from; `OSError` where the disk does not take it."""
        try:
            self._learner.save(folder)
        except (SafetensorError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            # Writers of other languages tell of a full disk in words of their own.
            raise OSError(errno.EIO, str(error).partition("\n")[0], str(folder)) from error

    def wrote(self, version: Version) -> None:
        self.kept = version
        self.failures = 0

    def failed(self, error: CheckpointError) -> str:
        """Note a failure. Says why the run is to stop, if it is to."""
        self.failures += 1
        _log.warning("%s (%d of %d tries)", error, self.failures, _TRIES)
        if not self.gave_up:
            return ""
        return f"{error}; it was tried {_TRIES} times in a row: free some space, then resume"
