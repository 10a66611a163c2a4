"""The watch for solvable tasks whose rewards fall to 0 while canaries fail."""

from plimsoll.runs.breaker.watch import CanaryResult, Trip, Watch
from plimsoll.runs.results import Row

__all__ = ["FallenTasks"]

_ZEROS = 3
"""The number of zeros in a row, after a reward above 0, that count as a fall."""
_SHOWN = 5


class FallenTasks(Watch):
    """Trips when a canary fails while tasks that had rewards above 0 get only zeros.

    Either alone is weak evidence: a policy may get worse, and a single canary may fail by chance.
    """

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        """Zeros in a row of each task that ever had a reward above 0."""
        self._last: dict[str, Row] = {}

    def trial(self, row: Row) -> Trip | None:
        if row.reward is None:
            return None
        if row.reward > 0.0:
            self._zeros[row.task] = 0
            self._last.pop(row.task, None)
        elif row.task in self._zeros:
            self._zeros[row.task] += 1
            self._last[row.task] = row
        return None

    def canary(self, result: CanaryResult) -> Trip | None:
        fallen = {task: zeros for task, zeros in self._zeros.items() if zeros >= _ZEROS}
        if result.good or not fallen:
            return None
        worst = sorted(fallen, key=lambda task: -fallen[task])
        named = ", ".join(f"{task} ({fallen[task]} zeros in a row)" for task in worst[:_SHOWN])
        more = f" and {len(worst) - _SHOWN} more" if len(worst) > _SHOWN else ""
        return Trip(
            rule="fallen-tasks",
            said=(
                f"{len(fallen)} solvable task(s) fell to reward 0 while canaries fail "
                f"(limit {_ZEROS - 1} zeros in a row)"
            ),
            example=self._last[worst[0]],
            notes=(
                f"fell to 0: {named}{more}",
                f"canary {result.row.task}.{result.row.attempt}: {result.said}",
                f"{result.voided} trials since the last good canary are void",
            ),
        )
