"""Ownership of trajectories in memory, for scoring that needs several at once.

A `Holding` belongs to a rollout and releases its trajectory when the rollout ends. If the scoring
of the group still needs it, a `GroupHolding` adopts it and releases it when scoring ends. All other
code uses a `Loan`: it gives access while the owner holds the trajectory, and keeps nothing alive.

    with GroupHolding() as group:
        with Holding(trajectory) as held:   # the rollout
            group.adopt(held)
        loan = held.borrow()                # for tasks of the scoring
"""

import weakref
from types import TracebackType

from plimsoll.core.errors import TrajectoryError
from plimsoll.trajectories.trajectory import Trajectory

__all__ = ["GroupHolding", "Holding", "Loan"]

_GONE = (
    "the trajectory has left memory: its rollout, or the scoring of its group, is over; "
    "work that needs it must end before, or read its file"
)


class Loan:
    """Access to a trajectory that a `Holding` owns."""

    __slots__ = ("_holding",)

    def __init__(self, holding: "Holding") -> None:
        self._holding = weakref.ref(holding)

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory; raises `TrajectoryError` once it is released. Read it anew after each
        `await`."""
        holding = self._holding()
        if holding is None:
            raise TrajectoryError(_GONE)
        return holding.trajectory


class Holding:
    """Owns one trajectory until its block ends or it is released."""

    __slots__ = ("__weakref__", "_adopted", "_trajectory")

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory: Trajectory | None = trajectory
        self._adopted = False

    @property
    def trajectory(self) -> Trajectory:
        if self._trajectory is None:
            raise TrajectoryError(_GONE)
        return self._trajectory

    def borrow(self) -> Loan:
        return Loan(self)

    def adopt(self) -> None:
        """Hand it to a new owner, who releases it: the end of the block no longer does."""
        if self._trajectory is None:
            raise TrajectoryError(_GONE)
        if self._adopted:
            raise TrajectoryError("the trajectory is held by a group already")
        self._adopted = True

    def release(self) -> None:
        self._trajectory = None

    def __enter__(self) -> "Holding":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._adopted:
            self.release()


class GroupHolding:
    """Owns the trajectories of a group's rollouts until its scoring ends."""

    __slots__ = ("_holdings", "_over")

    def __init__(self) -> None:
        self._holdings: list[Holding] = []
        self._over = False

    def adopt(self, holding: Holding) -> Loan:
        """Take over the trajectory of a rollout."""
        if self._over:
            raise TrajectoryError("the group's scoring is over; it takes no more trajectories")
        holding.adopt()
        self._holdings.append(holding)
        return holding.borrow()

    def release(self) -> None:
        self._over = True
        for holding in self._holdings:
            holding.release()
        self._holdings.clear()

    def __enter__(self) -> "GroupHolding":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
