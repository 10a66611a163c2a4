"""Recovery: finds the state from which a run continues after its process ended or was killed."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plimsoll.core.errors import LedgerError, UsageError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.checkpoints import FOLDER, Checkpoint, Checkpoints
from plimsoll.ledger.ledger import Ledger
from plimsoll.ledger.recovery import is_beyond
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.json_lines import read_lines
from plimsoll.runs.files.steps import Step, drop_undone, surviving
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.trials.verdicts import Cause, Void

__all__ = ["Restored", "checkpoints_of", "restore"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that a run continues from."""

    buffer: RolloutBuffer
    checkpoint: Checkpoint | None
    """The weights to continue from; None for the initial ones, or if nothing is trained."""
    folder: Path | None
    """The folder of the checkpoint."""
    lost: int
    """The number of trials that were running when the earlier process was killed."""
    steps: list[Step]
    """The committed steps that were not undone."""
    last_step: int
    """The number of the last step before recovery; 0 without any."""
    damaged: tuple[str, ...] = ()
    """Newer checkpoints that cannot be used, each with its damage."""


def checkpoints_of(directory: RunDirectory, plan: Plan) -> Checkpoints:
    return Checkpoints(directory.path / FOLDER, keep=plan.config.training.keep)


async def restore(ledger: Ledger, directory: RunDirectory, plan: Plan, *, trains: bool) -> Restored:
    """Bring the books to a state that the run can continue from. A new run is unchanged.

    Workers die with the controller, so running trials are lost and retried. A trainer continues
    from its last checkpoint. If nothing is trained, all versions are equivalent and no step is
    undone.
    """
    _check_tasks(ledger, plan)
    lines = list(read_lines(directory.steps, Step))
    _check_whole(ledger, directory, lines)
    checkpoints = checkpoints_of(directory, plan)
    found, damaged = await asyncio.to_thread(_latest_whole, checkpoints, ledger.books)
    if found is not None and not trains:
        raise UsageError(
            f"{directory.path} has checkpoints of a trainer: resume it with that trainer"
        )
    lost = await RolloutBuffer(directory).note_lost(ledger.books)
    at = ledger.books.version if not trains else FIRST_VERSION if found is None else found.version
    await ledger.recover(at, lambda _ticket, _worker: False)
    _check_tasks(ledger, plan)  # the undone steps have groups too
    await ledger.readmit(plan.trained.admitted)
    drop_undone(directory.steps, up_to=ledger.books.version.number)
    buffer = RolloutBuffer.load(directory, ledger.books)
    if missing := buffer.missing(ledger.books):
        # A power cut may lose rows of rollouts that are in the ledger.
        await ledger.distrust(missing, Void(Cause.LOST, f"{directory.results} has no line of it"))
        _log.warning(
            "%s has no line of %d graded rollouts: their groups are rolled out again",
            *(directory.results, len(missing)),
        )
        buffer.forget(ledger.books)
    return Restored(
        buffer,
        found,
        None if found is None else checkpoints.path(found),
        lost,
        surviving(lines, up_to=ledger.books.version.number),
        max((line.step for line in lines), default=0),
        damaged,
    )


def _latest_whole(
    checkpoints: Checkpoints, books: Books
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint with intact files, and the damage of those after it."""
    damaged: list[str] = []
    for found in checkpoints.restorable(books):
        if not (wrong := checkpoints.verify(found)):
            return found, tuple(damaged)
        path = checkpoints.path(found)
        damaged.append(f"{path}: {wrong[0]} is missing or does not match its digest")
    if damaged:
        # Restarting from the initial weights is a decision for the user.
        raise LedgerError(
            f"no checkpoint can be used: {'; '.join(damaged)}. Put the files back from a copy, or "
            f"remove {checkpoints.folder} to restart from the initial weights"
        )
    return None, ()


def _check_whole(ledger: Ledger, directory: RunDirectory, steps: Iterable[Step]) -> None:
    """Refuse a ledger that has lost its last events.

    The line of a step is written after its batch is in the ledger on the disk, so a line of a step
    unknown to the books proves the loss. Continuing would train on the same prompts again, from
    weights that have seen them.
    """
    for step in steps:
        if is_beyond(ledger.books, Version.parse(step.version)):
            path = ledger.path
            raise LedgerError(
                f"the ledger is at version {ledger.books.version}, and {directory.steps} has the "
                f"step of version {step.version}: the ledger's last events are missing. Put {path} "
                f"and {path.name}-wal back from one copy, or begin another run"
            )


def _check_tasks(ledger: Ledger, plan: Plan) -> None:
    """Refuse to continue if the task of a live group or a requeued prompt is missing."""
    books = ledger.books
    begun = {group.task for group in books.groups.values()}
    begun |= {pending.task for pending in books.pending.values()}
    if missing := sorted(begun - plan.tasks.keys()):
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise UsageError(
            f"the run has rollouts of the task {missing[0]}{more}, which is not in "
            f"{plan.config.run.tasks} any more: put it back"
        )
