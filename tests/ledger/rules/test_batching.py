"""The choice of batches: oldest first, and never one that makes other groups too old."""

from driven_run import DrivenRun, settings

from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.rules.batching import choose, surplus


def test_the_oldest_ready_groups_make_the_batch():
    run = DrivenRun(depth=2)
    run.admit()
    for n in (5, 3, 1, 4):
        run.finish(f"{n}-0/0.0")
    assert run.choose().ids == ("1-0", "3-0")


def test_an_older_head_goes_before_an_earlier_prompt():
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=4, group_policy="void", requeues=5)
    run.admit()
    run.start_all()
    run.void("0-0/0.0")  # prompt 0 is requeued, with a newer head
    run.finish("1-0/0.0")
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.admit()
    run.start_all()
    for ticket in ("2-0/0.0", "0-1/0.0"):
        run.finish(ticket)
    assert run.choose().ids == ("2-0",)


def test_too_few_ready_groups_make_no_batch_and_no_group_is_due():
    run = DrivenRun()
    run.admit()
    run.start_all()
    run.finish("3-0/0.0")
    waiting = run.waits()
    assert (waiting.ready, waiting.needed, waiting.due) == (1, 2, ())


def test_a_group_at_its_last_version_is_not_skipped():
    """The condition at j = 0: without it a sample of age 3 would be trained on."""
    run = DrivenRun(batch_groups=1, depth=1, max_staleness=1)
    run.admit()
    run.start_all()
    run.step(leave=("0-0",))
    run.admit()
    run.start_all()
    run.finish("2-0/0.0")
    waiting = run.waits()
    assert (waiting.due, waiting.upto) == (("0-0",), 0)
    run.finish("0-0/0.0")
    assert run.choose().ids == ("0-0",)


def test_more_groups_than_later_batches_can_hold_are_not_skipped():
    """The condition at j = 1: two groups due at version 2, and one place in each batch.

    At version 1 neither is due yet; but passing over both leaves one place for the two.
    """
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=2)
    run.admit()
    run.start_all()
    run.step(leave=("0-0", "1-0"))
    run.admit()
    run.start_all()
    run.finish("3-0/0.0")
    waiting = run.waits()
    assert (waiting.due, waiting.upto) == (("0-0",), 0)
    run.finish("1-0/0.0")
    assert run.choose().ids == ("1-0",)


def test_a_group_that_still_has_time_is_skipped():
    """The converse: with one such group the newer batch goes ahead."""
    run = DrivenRun(batch_groups=1, depth=2, max_staleness=2)
    run.admit()
    run.start_all()
    run.step(leave=("0-0",))
    run.step(leave=("0-0",))
    run.admit()
    run.start_all()
    assert run.books.version.number - run.books.groups["0-0"].head.number == 2


def test_only_the_necessary_number_of_groups_is_due():
    run = DrivenRun(batch_groups=2, depth=2, max_staleness=2)
    run.admit()
    run.start_all()
    for n in (4, 5):
        run.finish(f"{n}-0/0.0")
    run.accounts.consume(run.choose())
    run.accounts.commit()
    run.admit()
    run.start_all()
    for n in (6, 7):
        run.finish(f"{n}-0/0.0")
    # Four old groups run, due at version 2; after this batch two of them have a place then.
    assert run.waits().due == ("0-0", "1-0")


def test_no_group_is_due_while_all_block_equally():
    """With τ = η = 0 every group is at its last version from the start."""
    run = DrivenRun(depth=0, max_staleness=0)
    run.admit()
    run.start_all()
    run.finish("0-0/0.0")
    assert run.waits().due == ()


def test_choose_changes_nothing_and_is_stable_after_reopening():
    run = DrivenRun(depth=2)
    run.admit()
    for n in (5, 3, 1):
        run.finish(f"{n}-0/0.0")
    written = len(run.store.events)
    first = run.choose().ids
    assert run.choose().ids == first
    run.reopen()
    assert run.choose().ids == first
    assert len(run.store.events) == written


def test_there_is_no_batch_during_training():
    run = DrivenRun()
    run.admit()
    for n in range(4):
        run.finish(f"{n}-0/0.0")
    run.accounts.consume(run.choose())
    assert run.waits().ready == 2


def test_admission_preserves_the_condition():
    run = DrivenRun(batch_groups=3, depth=2, max_staleness=2)
    for _ in range(12):
        run.step()
        assert surplus(run.books, run.accounts.settings) == []


def test_groups_that_no_batch_can_use_in_time_are_given_up_running_ones_first():
    run = DrivenRun(batch_groups=2, depth=2, max_staleness=3)
    run.admit()
    run.start_all()
    for n in (0, 1, 3, 5):
        run.finish(f"{n}-0/0.0")
    run.accounts.consume(run.choose())
    run.accounts.commit()
    # Of the four groups of version 0 two run; η = 1 and B = 1 leave one of them time.
    changed = settings(batch_groups=1, depth=1, max_staleness=1)
    assert surplus(run.books, changed) == ["5-0", "2-0", "4-0"]
    run.accounts.configure(changed)
    assert list(run.books.groups) == ["3-0"]
    assert run.books.pending.keys() == {2, 4, 5}
    assert {pending.requeues for pending in run.books.pending.values()} == {0}
    assert run.choose().ids == ("3-0",)


def test_choose_is_a_function_of_the_books_alone():
    run = DrivenRun()
    run.admit()
    for n in range(4):
        run.finish(f"{n}-0/0.0")
    assert choose(run.store.books(), run.accounts.settings) == run.choose()
    assert (run.books.version, Version(0, 0)) == (FIRST_VERSION, FIRST_VERSION)
