"""Where a run goes on from, after whatever happened to the process that drove it."""

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
from plimsoll.runs.directory import RunDirectory
from plimsoll.runs.json_lines import read_lines
from plimsoll.runs.plan import Plan
from plimsoll.runs.rollout_buffer import RolloutBuffer
from plimsoll.runs.status import Step, surviving
from plimsoll.trials.verdicts import Cause, Void

__all__ = ["Restored", "checkpoints_of", "restore"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a run begins with."""

    buffer: RolloutBuffer
    checkpoint: Checkpoint | None
    """The weights to go on from; None where the first ones are meant, or nothing is trained."""
    folder: Path | None
    """Where its files are."""
    lost: int
    """Trials that ran when the process before was killed."""
    steps: list[Step]
    """Those that were committed and not undone."""
    damaged: tuple[str, ...] = ()
    """Checkpoints that are newer, and cannot be used: which, and what is wrong with each."""


def checkpoints_of(directory: RunDirectory, plan: Plan) -> Checkpoints:
    return Checkpoints(directory.path / FOLDER, keep=plan.config.training.keep)


async def restore(ledger: Ledger, directory: RunDirectory, plan: Plan, *, trains: bool) -> Restored:
    """Bring the books to where the run can go on, which for a new run is where they are.

    Workers die with the process that drives a run, so whatever ran is lost, and tried again.
    A trainer goes on from its last checkpoint; where nothing is trained, every version is as
    good as the first, and none has to be gone back to.
    """
    _check_tasks(ledger, plan)
    lines = list(read_lines(directory.steps, Step))
    _check_whole(ledger, directory, lines)
    checkpoints = checkpoints_of(directory, plan)
    found, damaged = await asyncio.to_thread(_latest_whole, checkpoints, ledger.books)
    if found is not None and not trains:
        raise UsageError(
            f"{directory.path} has checkpoints: a trainer drives it, and goes on with it"
        )
    lost = await RolloutBuffer(directory).note_lost(ledger.books)
    at = ledger.books.version if not trains else FIRST_VERSION if found is None else found.version
    await ledger.recover(at, lambda _ticket, _worker: False)
    _check_tasks(ledger, plan)  # of steps that were undone, too
    await ledger.readmit(plan.trained.admitted)
    buffer = RolloutBuffer.load(directory, ledger.books)
    if missing := buffer.missing(ledger.books):
        # A power cut takes lines with it that the ledger has buffer.
        await ledger.distrust(missing, Void(Cause.LOST, f"{directory.results} has no line of it"))
        _log.warning(
            "%s has no line of %d rollouts that were graded: they are made again",
            *(directory.results, len(missing)),
        )
        buffer.forget(ledger.books)
    return Restored(
        buffer,
        found,
        None if found is None else checkpoints.path(found),
        lost,
        surviving(lines, up_to=ledger.books.version.number),
        damaged,
    )


def _latest_whole(
    checkpoints: Checkpoints, books: Books
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest whose files are what was written, and what is wrong with those after it."""
    damaged: list[str] = []
    for found in checkpoints.fitting(books):
        if not (wrong := checkpoints.verify(found)):
            return found, tuple(damaged)
        damaged.append(f"{checkpoints.path(found)}: {wrong[0]} is not what was written")
    if damaged:
        # To begin again from the first weights is nothing to decide for somebody.
        raise LedgerError(
            f"no checkpoint can be used: {'; '.join(damaged)}. Put the files back from a copy, or "
            f"remove {checkpoints.folder} to go on from the first weights"
        )
    return None, ()


def _check_whole(ledger: Ledger, directory: RunDirectory, steps: Iterable[Step]) -> None:
    """A step's line is written while the ledger has its batch on the disk: one of which the books
    cannot know says that they have lost their last events.

    Going on without them would train on the same prompts again, from weights that have seen them.
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
    """What is under way must have its task."""
    books = ledger.books
    begun = {group.task for group in books.groups.values()}
    begun |= {pending.task for pending in books.pending.values()}
    if missing := sorted(begun - plan.tasks.keys()):
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise UsageError(
            f"the run has rollouts of the task {missing[0]}{more}, which is not in "
            f"{plan.config.run.tasks} any more: put it back"
        )
