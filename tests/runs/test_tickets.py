"""What is taken next and what is told to come: canaries too, and each just once."""

from collections.abc import Callable

from plimsoll.runs.breaker.canaries import Canaries
from plimsoll.runs.tickets import Ticket, Upcoming
from plimsoll.tasks.task import Task

MakeTasks = Callable[..., tuple[Task, ...]]


class Told:
    def __init__(self) -> None:
        self.open: list[str] = []

    def coming(self, ticket: Ticket) -> None:
        self.open.append(ticket.label)

    def over(self, ticket: Ticket) -> None:
        self.open.remove(ticket.label)


def upcoming(
    tasks: tuple[Task, ...], told: Told, *, ahead: int, canaries: Canaries | None = None
) -> Upcoming:
    tickets = (Ticket(task, attempt) for attempt in (1, 2) for task in tasks)
    named = {task.name: task for task in tasks}
    return Upcoming(tickets, ahead=ahead, tasks=named, canaries=canaries, hints=told)


def test_the_next_few_are_known_and_no_more(make_tasks: MakeTasks):
    told = Told()
    coming = upcoming(make_tasks("a", "b", "c"), told, ahead=2)
    taken = coming.take()
    assert taken is not None
    assert told.open == ["a.1", "b.1", "c.1"]
    coming.over(taken)
    assert told.open == ["b.1", "c.1"]


def test_all_are_taken_in_their_order_whatever_is_known_ahead(make_tasks: MakeTasks):
    coming = upcoming(make_tasks("a", "b"), Told(), ahead=16)
    labels: list[str] = []
    while (ticket := coming.take()) is not None:
        labels.append(ticket.label)
    assert labels == ["a.1", "b.1", "a.2", "b.2"]


def test_a_canary_is_told_before_it_is_due_and_taken_when_it_is(make_tasks: MakeTasks):
    told = Told()
    canaries = Canaries.of(3, ["b"])
    coming = upcoming(make_tasks("a", "b", "c"), told, ahead=1, canaries=canaries)
    taken: list[str] = []
    first_told: int | None = None
    while (ticket := coming.take()) is not None:
        taken.append(ticket.label)
        if first_told is None and any("canary" in label for label in told.open):
            first_told = len(taken)
        coming.over(ticket)
    trials, canary = ["a.1", "b.1", "c.1", "a.2", "b.2", "c.2"], "b.oracle.{} (canary)"
    assert taken == [*trials[:3], canary.format(1), *trials[3:], canary.format(2)]
    assert first_told == 2
    assert told.open == []


def test_after_a_stop_nothing_is_taken_and_nothing_is_expected(make_tasks: MakeTasks):
    told = Told()
    coming = upcoming(make_tasks("a", "b", "c"), told, ahead=3, canaries=Canaries.of(2, ["a"]))
    taken = coming.take()
    assert taken is not None
    coming.stop()
    assert told.open == [taken.label]
    assert coming.take() is None
