"""The order of the data: every task once per epoch, even if tasks change meanwhile."""

from collections import Counter
from collections.abc import Callable

import pytest
from driven_run import DrivenRun

from plimsoll.ledger.data_order import DataOrder, Epoch
from plimsoll.ledger.journal import snapshot

NAMES = [f"task-{n}" for n in range(100)]


def roll_out(run: DrivenRun, order: DataOrder, most: int = 10**6) -> list[str]:
    """Train on prompts in order, up to a number or to the end. Returns their tasks."""
    tasks: list[str] = []
    while len(tasks) < most and (groups := run.accounts.admit(order, 1)):
        [group] = groups
        tasks.append(group.task)
        run.finish(group.ticket(0))
        if run.books.buffered == 2:
            run.accounts.consume(run.choose())
            run.accounts.commit()
    return tasks


def test_every_epoch_has_every_task_once_in_its_own_order():
    run, order = DrivenRun(), DataOrder(NAMES, seed=3, epochs=3)
    tasks = roll_out(run, order)
    epochs = [tasks[:100], tasks[100:200], tasks[200:]]
    assert [sorted(epoch) for epoch in epochs] == [sorted(NAMES)] * 3
    assert epochs == [list(order.epoch(number)) for number in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert DataOrder(NAMES, seed=4).epoch(0) != order.epoch(0)
    assert order.next_task(run.books.epoch) is None


def test_adding_or_removing_a_task_moves_no_other():
    order = DataOrder(NAMES).epoch(5)
    assert [task for task in order if task != "task-7"] == [
        *DataOrder([name for name in NAMES if name != "task-7"]).epoch(5)
    ]


def without_first(order: tuple[str, ...]) -> list[str]:
    return [name for name in NAMES if name != order[0]]


def without_last(order: tuple[str, ...]) -> list[str]:
    return [name for name in NAMES if name != order[-1]]


def without_half(order: tuple[str, ...]) -> list[str]:
    return NAMES[::2]


def with_one_more(order: tuple[str, ...]) -> list[str]:
    return [*NAMES, "new"]


def with_others(order: tuple[str, ...]) -> list[str]:
    return [*(name for name in NAMES if name != order[3]), *(f"new-{n}" for n in range(9))]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "changed", [without_first, without_last, without_half, with_one_more, with_others]
)
@pytest.mark.parametrize("begun", [1, 50, 99])
def test_tasks_changed_mid_epoch_each_have_one_turn(
    changed: Callable[[tuple[str, ...]], list[str]], begun: int, seed: int
):
    run, order = DrivenRun(), DataOrder(NAMES, seed=1, epochs=2)
    before = roll_out(run, order, begun)
    run.reopen()
    run.recover(run.books.version)
    names = changed(order.epoch(0))
    tasks = roll_out(run, DataOrder(names, seed=seed, epochs=2))
    this, following = tasks[: -len(names)], tasks[-len(names) :]
    assert Counter([*before, *this]) == Counter({*before, *names}), "every task has one turn"
    assert Counter(following) == Counter(names)
    assert run.is_sound()


def test_an_excluded_task_is_skipped_at_its_turn():
    run = DrivenRun(group_policy="void", requeues=0)
    order = DataOrder(NAMES, epochs=2)
    [group] = run.accounts.admit(order, 1)
    run.void(group.ticket(0))
    tasks = roll_out(run, order)
    assert Counter(tasks) == Counter({name: 2 for name in NAMES if name != group.task})
    assert (run.books.next_prompt, run.books.tally.quarantined) == (200, 2)


def test_a_requeued_prompt_is_not_a_turn():
    run = DrivenRun(group_policy="void", requeues=3)
    order = DataOrder(NAMES, epochs=1)
    [group] = run.accounts.admit(order, 1)
    run.void(group.ticket(0))
    tasks = roll_out(run, order)
    assert Counter(tasks) == Counter(NAMES)


def test_an_epoch_is_the_same_from_a_snapshot():
    run = DrivenRun()
    roll_out(run, DataOrder(NAMES), 130)
    kept = snapshot.load(snapshot.dump(run.books)).epoch
    assert (kept.number, kept.begun) == (1, run.books.epoch.begun)
    assert len(kept.begun) == 30


def test_fewer_epochs_than_have_begun_end_at_once():
    epoch = Epoch(number=2, begun=["task-1"])
    assert DataOrder(NAMES, epochs=2).next_task(epoch) is None
    assert DataOrder(NAMES, epochs=3).next_task(epoch) is not None


@pytest.mark.parametrize("begun", [0, 1, 50, 100, 199, 200])
def test_upcoming_predicts_the_next_tasks_and_changes_nothing(begun: int):
    run, order = DrivenRun(), DataOrder(NAMES, seed=3, epochs=2)
    roll_out(run, order, begun)
    upcoming = list(order.upcoming(run.books.epoch))
    assert len(upcoming) == 200 - begun
    assert upcoming == list(order.upcoming(run.books.epoch)) == roll_out(run, order)
