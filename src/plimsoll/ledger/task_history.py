"""Task history: the groups of each task, from the events of a journal."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from plimsoll.core.versions import Version
from plimsoll.ledger.books.books import Books
from plimsoll.ledger.books.group import split_ticket
from plimsoll.ledger.books.tally import count
from plimsoll.ledger.events import (
    Admitted,
    Committed,
    Consumed,
    Event,
    Finished,
    GroupVoided,
    RolledBack,
    Voided,
)
from plimsoll.trials.verdicts import Cause

__all__ = ["GroupHistory", "Histories", "TaskHistory"]


class GroupHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One group, from its admission to its end."""

    group: str
    prompt: int
    admitted: str
    """The version at admission."""
    size: int
    evaluation: bool
    rewards: list[float]
    void: list[str]
    """The causes of its void rollouts, in order."""
    outcome: str
    """`running`, `buffered`, `training`, `trained: <version>`, `evaluated`, or `void: <cause>`."""


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One task, all its groups together."""

    task: str
    groups: int
    trained: int
    graded: int
    mean_reward: float | None
    void: dict[str, int]
    """Its void rollouts by cause."""
    quarantined: str | None
    """The reason of its exclusion."""


@dataclass(slots=True)
class _Group:
    admitted: Admitted
    rewards: list[float] = field(default_factory=list[float])
    void: list[Cause] = field(default_factory=list[Cause])
    given_up: Cause | None = None
    made: Version | None = None
    """The version that was made of it, in the surviving lineage."""


class Histories:
    """Takes events in order; then reports the tasks and their groups."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._training: tuple[str, ...] = ()

    def take(self, event: Event) -> None:
        match event:
            case Finished() | Voided():
                self._ended(event)
            case Admitted():
                self._groups[event.group] = _Group(event)
            case GroupVoided():
                self._groups[event.group].given_up = event.cause
            case Consumed():
                self._training = event.groups
            case Committed():
                for name in self._training:
                    self._groups[name].made = event.version
            case RolledBack():
                for group in self._groups.values():
                    if group.made and group.made.number > event.parent.number:
                        group.made = None
            case _:
                pass

    def _ended(self, event: Finished | Voided) -> None:
        parts = split_ticket(event.ticket)
        group = self._groups.get(parts[0]) if parts else None
        if group is None:
            return
        if isinstance(event, Finished):
            group.rewards.append(event.reward)
        else:
            group.void.append(event.cause)

    def tasks(self, books: Books) -> list[TaskHistory]:
        """All tasks that training has started, by name."""
        by_task: dict[str, list[_Group]] = {}
        for group in self._groups.values():
            if group.admitted.purpose == "train":
                by_task.setdefault(group.admitted.task, []).append(group)
        return [_task(name, by_task[name], books) for name in sorted(by_task)]

    def groups(self, books: Books, task: str) -> list[GroupHistory]:
        """Every group of a task, in the order of admission."""
        return [
            GroupHistory(
                group=name,
                prompt=group.admitted.prompt,
                admitted=str(group.admitted.head),
                size=group.admitted.size,
                evaluation=group.admitted.purpose == "eval",
                rewards=group.rewards,
                void=[str(cause) for cause in group.void],
                outcome=_outcome(name, group, books),
            )
            for name, group in self._groups.items()
            if group.admitted.task == task
        ]


def _task(name: str, groups: Iterable[_Group], books: Books) -> TaskHistory:
    groups = list(groups)
    rewards = [reward for group in groups for reward in group.rewards]
    void: dict[str, int] = {}
    for cause in (cause for group in groups for cause in group.void):
        count(void, str(cause))
    return TaskHistory(
        task=name,
        groups=len(groups),
        trained=sum(group.made is not None for group in groups),
        graded=len(rewards),
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        void=dict(sorted(void.items())),
        quarantined=books.quarantined.get(name),
    )


def _outcome(name: str, group: _Group, books: Books) -> str:
    live = books.groups.get(name) or books.evals.get(name)
    if live is not None:
        return "training" if live.training else "buffered" if live.final else "running"
    if group.made is not None:
        return f"trained: {group.made}"
    if group.admitted.purpose == "eval":
        return "evaluated"
    cause = group.given_up or (group.void[-1] if group.void else Cause.STALE)
    return f"void: {cause}"
