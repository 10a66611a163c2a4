"""The schedule of checkpoints, and the reaction to failed writes.

A failed write leaves the checkpoint before it intact. The step is committed anyway and the write
is retried with the next step. After several failures in a row the run stops, because a crash would
lose more and more steps.
"""

import errno
import logging
from pathlib import Path

from safetensors import SafetensorError

from plimsoll.core.errors import CheckpointError
from plimsoll.core.versions import Version
from plimsoll.runs.rollouts import Save
from plimsoll.training.learner.distributed import DistributedLearner
from plimsoll.training.models import is_out_of_memory

__all__ = ["Checkpointer"]

_TRIES = 3
_log = logging.getLogger(__name__)


class Checkpointer:
    """Writes the checkpoints of one run. `saved` is the version of the last one."""

    def __init__(
        self, learner: DistributedLearner, *, every: int, last: int | None, saved: Version | None
    ) -> None:
        self.saved = saved
        self.failures = 0
        """Consecutive failures."""
        self._learner = learner
        self._every = every
        self._last = last

    @property
    def gave_up(self) -> bool:
        """Whether there were so many failures that the run stops."""
        return self.failures >= _TRIES

    def due(self, step: int) -> Save | None:
        """The function that writes the checkpoint of a step; None if none is due."""
        due = self.failures > 0 or step % self._every == 0 or step == self._last
        return self.save if due else None

    def save(self, folder: Path) -> None:
        """Write the learner's state. Raises `OSError` if the disk does not take it."""
        try:
            self._learner.save(folder)
        except (SafetensorError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            # Native writers report a full disk with their own error types.
            raise OSError(errno.EIO, str(error).partition("\n")[0], str(folder)) from error

    def succeeded(self, version: Version) -> None:
        """Note that the checkpoint of a version was written."""
        self.saved = version
        self.failures = 0

    def failed(self, error: CheckpointError) -> str:
        """Note a failure. Returns the reason to stop the run, or an empty text."""
        self.failures += 1
        _log.warning("%s (%d of %d tries)", error, self.failures, _TRIES)
        if not self.gave_up:
            return ""
        return f"{error}; {_TRIES} tries in a row failed: free some space, then resume"
