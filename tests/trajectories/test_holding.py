import asyncio
import gc
import weakref

import pytest

from plimsoll.core.errors import TrajectoryError
from plimsoll.trajectories.holding import GroupHolding, Holding, Loan
from plimsoll.trajectories.records import Opened
from plimsoll.trajectories.trajectory import Trajectory


def trajectory(name: str = "s") -> Trajectory:
    return Trajectory(Opened(name, 1.0))


def alive() -> int:
    gc.collect()
    return sum(isinstance(one, Trajectory) for one in gc.get_objects())


@pytest.fixture(autouse=True)
def _no_trajectory_is_left():
    before = alive()
    yield
    assert alive() == before


def test_a_rollout_that_ends_frees_its_trajectory_despite_a_loan():
    with Holding(trajectory()) as held:
        loan = held.borrow()
        seen = weakref.ref(loan.trajectory)
        assert loan.trajectory.opened.session == "s"
    assert seen() is None
    with pytest.raises(TrajectoryError, match="has left memory"):
        _ = loan.trajectory
    with pytest.raises(TrajectoryError, match="has left memory"):
        held.adopt()


def test_a_loan_ends_with_its_rollout_even_if_the_trajectory_is_referenced():
    with Holding(trajectory()) as held:
        loan = held.borrow()
        kept = loan.trajectory
    with pytest.raises(TrajectoryError):
        _ = loan.trajectory
    del kept


def test_a_loan_does_not_keep_a_trajectory_alive():
    loan = Holding(trajectory()).borrow()
    with pytest.raises(TrajectoryError):
        _ = loan.trajectory


def test_a_rollout_that_fails_frees_its_trajectory():
    loans: list[Loan] = []
    with pytest.raises(ValueError, match="bad"), Holding(trajectory()) as held:
        loans.append(held.borrow())
        raise ValueError("bad")
    assert alive() == 0
    with pytest.raises(TrajectoryError):
        _ = loans[0].trajectory


def test_a_group_holds_adopted_trajectories_until_its_scoring_ends():
    with GroupHolding() as group:
        loans: list[Loan] = []
        for number in range(3):
            with Holding(trajectory(f"{number}")) as held:
                loans.append(group.adopt(held))
        del held
        assert [loan.trajectory.opened.session for loan in loans] == ["0", "1", "2"]
    assert alive() == 0
    for loan in loans:
        with pytest.raises(TrajectoryError):
            _ = loan.trajectory


def test_a_trajectory_has_one_owner():
    with GroupHolding() as first, GroupHolding() as second, Holding(trajectory()) as held:
        first.adopt(held)
        with pytest.raises(TrajectoryError, match="by a group already"):
            second.adopt(held)


def test_a_released_group_adopts_nothing_and_the_rollout_still_frees_its_trajectory():
    group = GroupHolding()
    group.release()
    with Holding(trajectory()) as held:
        with pytest.raises(TrajectoryError, match="over"):
            group.adopt(held)
        assert held.trajectory.opened.session == "s"
    assert alive() == 0


async def test_failed_scoring_in_tasks_leaves_no_trajectory():
    async def score(loan: Loan, fails: bool) -> int:
        await asyncio.sleep(0)
        if fails:
            raise ValueError("no score")
        await asyncio.sleep(60)
        return len(loan.trajectory.exchanges)

    with pytest.raises(ExceptionGroup), GroupHolding() as group:
        loans: list[Loan] = []
        for _ in range(3):
            with Holding(trajectory()) as held:
                loans.append(group.adopt(held))
        async with asyncio.TaskGroup() as tasks:
            for number, loan in enumerate(loans):
                tasks.create_task(score(loan, number == 1))
    del held
    assert alive() == 0


async def test_a_task_that_outlives_its_group_cannot_use_its_loan():
    release = asyncio.Event()

    async def linger(loan: Loan) -> str:
        assert loan.trajectory.opened.session == "s"
        await release.wait()
        with pytest.raises(TrajectoryError):
            _ = loan.trajectory
        return "over"

    with GroupHolding() as group:
        with Holding(trajectory()) as held:
            loan = group.adopt(held)
        task = asyncio.create_task(linger(loan))
        await asyncio.sleep(0)
    assert alive() == 0
    release.set()
    assert await task == "over"


async def test_a_cancelled_rollout_frees_its_trajectory():
    started = asyncio.Event()

    async def rollout() -> None:
        with Holding(trajectory()):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(rollout())
    await started.wait()
    assert alive() == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    assert alive() == 0
