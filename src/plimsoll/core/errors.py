"""Every error that Plimsoll raises on purpose, in one tree.

    PlimsollError
    ├── UsageError            an unusable command, option or config file
    ├── TaskError             an invalid task folder: file, key, line
    ├── AssetError            an asset cannot be fetched, or the assets folder is unusable
    ├── SandboxError          an error of the sandbox, not of a command in it
    │   ├── SandboxUnavailable    it cannot be started, or is gone; its work is unknown
    │   ├── SandboxUnsupported    the backend cannot provide what the task requires
    │   ├── BuildError            an image could not be built: Dockerfile line, command, output
    │   └── TransferError         a file or folder could not be copied in or out
    │       └── NoRoom                because the target disk is full
    ├── PolicyError           the policy's server failed or sent an invalid answer
    ├── TrajectoryError       a trajectory cannot be written or read
    │   └── TrajectoryGone        for good: its file is missing or was changed
    ├── WorkerError           workers cannot be started, or crash repeatedly
    ├── LedgerError           the ledger of a run cannot be opened, written or trusted
    │   └── CheckpointError       a checkpoint cannot be written; the previous one stays
    ├── TrainingError         the policy cannot be trained, or training cannot continue
    ├── SetUpError            a command that prepares a trial failed; never only a warning
    └── AgentError            the agent itself failed
        └── SolutionError         the task's own solution failed: the task is at fault

Vocabulary: a *failed command* inside a sandbox is a result (`ExecResult`), never an exception.
An exception means that Plimsoll could not do its work. A bad rollout is data: `trials` turns each
of these errors into a void verdict, by one table.

A message to a person says what happened, where, and what to do.
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
    """Base of all errors raised on purpose. Its `str()` is safe to show and to store, whatever
    names it contains."""

    def __str__(self) -> str:
        return safe_text(super().__str__())


class UsageError(PlimsollError):
    """An unusable command, option or config file."""


class TaskError(PlimsollError):
    """A task folder is invalid. `problems` has one line for each mistake, with its location."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(safe_text(problem) for problem in problems)


class AssetError(PlimsollError):
    """An asset cannot be fetched, or the assets folder is unusable."""


class SandboxError(PlimsollError):
    """An error of a sandbox, not of a command in it."""


class SandboxUnavailable(SandboxError):
    """The sandbox cannot be started, or is gone."""


class SandboxUnsupported(SandboxError):
    """The backend cannot provide what the task requires. It never substitutes something else."""


class BuildError(SandboxError):
    """An image could not be built."""


class TransferError(SandboxError):
    """A file or folder could not be copied into or out of a sandbox."""


class NoRoom(TransferError):
    """The target disk of a transfer is full. `named`: the message names the disk."""

    def __init__(self, text: str, *, named: bool = False) -> None:
        super().__init__(text)
        self.named = named


class PolicyError(PlimsollError):
    """The policy's server failed or sent an invalid answer. It says nothing about the policy."""


class TrajectoryError(PlimsollError):
    """A trajectory cannot be written, or its file cannot be trusted."""


class TrajectoryGone(TrajectoryError):
    """A stored trajectory is missing, or was changed after it was written. A retry would fail
    too."""


class WorkerError(PlimsollError):
    """Workers cannot be started, or crash repeatedly. The message has their last output."""


class LedgerError(PlimsollError):
    """The ledger of a run cannot be opened, written or trusted."""


class CheckpointError(LedgerError):
    """A checkpoint cannot be written. The ledger and the previous checkpoint are unchanged."""


class TrainingError(PlimsollError):
    """The policy cannot be trained, or training cannot continue."""


class SetUpError(PlimsollError):
    """A command that prepares a trial failed."""


class AgentError(PlimsollError):
    """The agent itself failed."""


class SolutionError(AgentError):
    """The task's own solution failed: the task is at fault."""
