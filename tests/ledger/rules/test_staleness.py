"""`StalenessManager`: the counter form, whose answers a recovery must not change."""

import threading

import pytest

from plimsoll.ledger.rules.staleness import RolloutStats, StalenessManager


class Policy:
    def __init__(self, version: int = 0) -> None:
        self.version = version

    def get_version(self) -> int:
        return self.version


def manager(version: int = 0, *, cap: int = 5000, batch: int = 4, bound: int = 2):
    return StalenessManager(Policy(version), cap, batch, bound)


def accept(made: StalenessManager, count: int) -> None:
    for _ in range(count):
        made.on_rollout_enqueued()
        made.on_rollout_submitted()
        made.on_rollout_accepted()


def test_a_recovered_run_has_room_for_12_not_1084():
    made = manager(268)
    assert made.get_capacity() == 1084
    made.on_version_recovered(268)
    assert made.get_capacity() == 12


@pytest.mark.parametrize("version", [0, 1, 5, 10, 50, 268])
def test_capacity_after_recovery_does_not_depend_on_the_version(version: int):
    made = manager(version)
    made.on_version_recovered(version)
    assert made.get_capacity() == 12


@pytest.mark.parametrize("version", [1, 7, 268])
def test_a_recovered_manager_equals_one_that_never_stopped(version: int):
    whole = manager()
    for number in range(version):
        whole.version_provider.version = number
        accept(whole, 4)
    whole.version_provider.version = version
    accept(whole, 3)
    made = manager(version)
    made.on_version_recovered(version, buffered=3)
    assert made.get_capacity() == whole.get_capacity() == 9
    assert made.get_stats().accepted == whole.get_stats().accepted


def test_version_0_is_a_no_op():
    made = manager()
    accept(made, 3)
    made.on_version_recovered(0)
    assert made.get_stats() == RolloutStats(accepted=3)
    assert made.get_capacity() == 9


def test_running_rollouts_are_counted_separately():
    made = manager(268)
    for _ in range(5):
        made.on_rollout_enqueued()
        made.on_rollout_submitted()
    made.on_version_recovered(268)
    assert made.get_capacity() == 12 - 5
    for _ in range(5):
        made.on_rollout_accepted()
    assert made.get_stats() == RolloutStats(accepted=268 * 4 + 5)
    assert made.get_capacity() == 12 - 5


@pytest.mark.parametrize("version", [0, 268])
def test_buffered_rollouts_use_capacity(version: int):
    made = manager(version)
    made.on_version_recovered(version, buffered=7)
    assert made.get_capacity() == 12 - 7


def test_a_second_call_changes_nothing():
    made = manager(268)
    for _ in range(3):
        made.on_version_recovered(268, buffered=2)
    assert made.get_capacity() == 10


@pytest.mark.parametrize("earlier", [100, 1, 0])
def test_a_rollback_to_an_earlier_version_counts_fewer(earlier: int):
    made = manager(268)
    made.on_version_recovered(268)
    made.version_provider.version = earlier
    made.on_version_recovered(earlier)
    assert made.get_capacity() == 12
    assert made.get_stats().accepted == earlier * 4


def test_a_rollback_to_0_of_a_run_that_was_never_recovered():
    made = manager()
    for number in range(3):
        made.version_provider.version = number
        made.get_capacity()
        accept(made, 4)
    made.version_provider.version = 0
    made.on_version_recovered(0)
    assert made.get_capacity() == 12


def test_capacity_is_the_lesser_of_seats_and_credit():
    made = manager(cap=5)
    assert made.get_capacity() == 5
    accept(made, 10)
    assert made.get_capacity() == 2
    accept(made, 4)
    assert made.get_capacity() == -2


def test_rejected_rollouts_free_their_capacity():
    made = manager()
    made.on_rollout_enqueued()
    assert made.get_stats() == RolloutStats(enqueued=1)
    made.on_rollout_submitted()
    assert made.get_capacity() == 11
    made.on_rollout_rejected()
    assert made.get_stats() == RolloutStats(rejected=1)
    assert made.get_capacity() == 12


def test_sizes_below_1_count_as_1():
    made = manager(cap=0, batch=-3)
    assert (made.max_concurrent_rollouts, made.consumer_batch_size) == (1, 1)
    assert made.get_capacity() == 1
    assert made.get_pending_limit() == 3


def test_the_pending_limit_is_a_number_of_batches():
    assert manager().get_pending_limit() == 12


def test_stats_are_a_copy():
    made = manager()
    made.get_stats().accepted = 99
    assert made.get_stats().accepted == 0


def test_no_count_is_lost_among_threads():
    made = manager(cap=10**6, batch=10**6)

    def work() -> None:
        for n in range(2000):
            made.on_rollout_enqueued()
            made.on_rollout_submitted()
            made.get_capacity()
            if n % 4:
                made.on_rollout_accepted()
            else:
                made.on_rollout_rejected()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.get_stats() == RolloutStats(accepted=8 * 1500, rejected=8 * 500)
