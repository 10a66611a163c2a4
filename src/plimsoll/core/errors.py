"""Every error that Plimsoll raises on purpose, in one tree.

    PlimsollError
    ├── UsageError            a command, option or config file that cannot be used as it is
    ├── TaskError             a task folder that is not a valid task: file, key, line
    ├── AssetError            an asset cannot be had, or the assets folder cannot be used
    ├── SandboxError          the place where an agent runs
    │   ├── SandboxUnavailable    it cannot be started, or is gone; nothing is known of its work
    │   ├── SandboxUnsupported    the backend cannot do what the task asks for, and says so
    │   ├── BuildError            an image could not be built: Dockerfile line, command, output
    │   └── TransferError         a file or folder could not be carried in or out
    │       └── NoRoom                since the disk that it was to stand on is full
    ├── PolicyError           the policy's server did not answer as it should
    ├── TrajectoryError       what was said cannot be written down, or cannot be read back
    │   └── TrajectoryGone        and never will be: there is no such file, or it was changed
    ├── WorkerError           workers cannot be started, or end again and again
    ├── LedgerError           the books of a run cannot be opened, written or trusted
    │   └── CheckpointError       a checkpoint cannot be written; the one before it stays
    ├── TrainingError         the policy cannot be trained, or not any further
    ├── SetUpError            a command that prepares a trial failed; never only a warning
    └── AgentError            the agent itself
        └── SolutionError         the task's own solution failed: the task is at fault

Vocabulary: a *command that failed* inside a sandbox is a result (`ExecResult`), never an
exception. An exception says that Plimsoll could not do what it was asked to. A bad rollout
is data: `trials` turns each of these into a void verdict, by one table.

A message to a person says what happened, where, and what to do about it.
"""

from plimsoll.core.text import safe_text

__all__ = [
    "AgentError",
    "AssetError",
    "BuildError",
    "CheckpointError",
    "LedgerError",
    "NoRoom",
    "PlimsollError",
    "PolicyError",
    "SandboxError",
    "SandboxUnavailable",
    "SandboxUnsupported",
    "SetUpError",
    "SolutionError",
    "TaskError",
    "TrainingError",
    "TrajectoryError",
    "TrajectoryGone",
    "TransferError",
    "UsageError",
    "WorkerError",
]


class PlimsollError(Exception):
    """Base of all errors raised on purpose. `str()` of it is fit to show to a person and to write
    to a file, whatever the names in it are."""

    def __str__(self) -> str:
        return safe_text(super().__str__())


class UsageError(PlimsollError):
    """A command, an option or a config file cannot be used as it is."""


class TaskError(PlimsollError):
    """A task folder is not valid. `problems` has one line for each mistake, with its place."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(safe_text(problem) for problem in problems)


class AssetError(PlimsollError):
    """An asset cannot be had, or the assets folder cannot be used."""


class SandboxError(PlimsollError):
    """Something about a sandbox rather than about the command in it."""


class SandboxUnavailable(SandboxError):
    """The sandbox cannot be started, or is gone."""


class SandboxUnsupported(SandboxError):
    """The backend cannot do what the task asks for. Never silently done otherwise."""


class BuildError(SandboxError):
    """An image could not be built."""


class TransferError(SandboxError):
    """A file or folder could not be carried into or out of a sandbox."""


class NoRoom(TransferError):
    """There is no room for it where it was to be carried to. `named`: it says which disk."""

    def __init__(self, text: str, *, named: bool = False) -> None:
        super().__init__(text)
        self.named = named


class PolicyError(PlimsollError):
    """The policy's server did not answer as it should; nothing is known of the policy's worth."""


class TrajectoryError(PlimsollError):
    """A trajectory cannot be written, or its file cannot be trusted."""


class TrajectoryGone(TrajectoryError):
    """A stored trajectory is not there any more, or is not what was written. Another try to read
    it finds the same."""


class WorkerError(PlimsollError):
    """Workers cannot be started, or end again and again. It carries their last words."""


class LedgerError(PlimsollError):
    """The books of a run cannot be opened, written or trusted."""


class CheckpointError(LedgerError):
    """A checkpoint cannot be written. The books are as they were, and so is the last one."""


class TrainingError(PlimsollError):
    """The policy cannot be trained with what there is, or not any further."""


class SetUpError(PlimsollError):
    """A command that prepares a trial failed."""


class AgentError(PlimsollError):
    """The agent could not do its work for a reason of its own."""


class SolutionError(AgentError):
    """The task's own solution failed, so the task is at fault."""
