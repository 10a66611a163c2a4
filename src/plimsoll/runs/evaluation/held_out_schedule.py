"""The schedule of held-out evaluations, for runs that train and runs that only roll out."""

from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.rollouts import Rollouts

__all__ = ["HeldOutSchedule"]


class HeldOutSchedule:
    """Evaluates before the first step, at a fixed interval, and after the last; once per step.

    Not once per version: a killed run continues with the same weights in another lineage.
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._every = rollouts.plan.config.evaluation.every

    async def if_due(self) -> HeldOutResult | None:
        """Evaluate between two steps, if due. After a resume, an evaluation that the earlier
        process did not finish is due again. None if none is due or the evaluation is
        interrupted."""
        step = self._rollouts.version.number
        if step == 0:
            return await self._measure("before the first step")
        if self._every and step % self._every == 0 and step != self._rollouts.plan.steps:
            return await self._measure(f"after step {step}")
        return None

    async def at_end(self) -> HeldOutResult | None:
        return await self._measure("after the last step")

    async def _measure(self, when: str) -> HeldOutResult | None:
        rollouts = self._rollouts
        is_measured = any(
            measured.step == rollouts.version.number for measured in rollouts.held_out
        )
        if is_measured or not rollouts.plan.held_out.tasks:
            return None
        return await rollouts.evaluate(when)
