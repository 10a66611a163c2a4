"""When a run is measured on its held-out tasks, whether it trains or only rolls out."""

from plimsoll.runs.evaluation.held_out import HeldOutResult
from plimsoll.runs.rollouts import Rollouts

__all__ = ["HeldOutSchedule"]


class HeldOutSchedule:
    """Before the first step, every so many steps, and after the last; once for each step.

    Not once for each version: a run that was killed goes on with the same weights under the name
    of another lineage.
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._every = rollouts.plan.config.evaluation.every

    async def if_due(self) -> HeldOutResult | None:
        """Between two steps. One that is due when a run goes on was not made, or not to its end,
        in the life before. None where none is due, or it is cut short."""
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
        known = any(measured.step == rollouts.version.number for measured in rollouts.held_out)
        if known or not rollouts.plan.held_out.tasks:
            return None
        return await rollouts.evaluate(when)
