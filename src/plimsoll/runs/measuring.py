"""When a run that only rolls out is measured on its held-out tasks: as one that trains is."""

from plimsoll.runs.rollouts import Rollouts

__all__ = ["Measuring"]


class Measuring:
    """Before the first step, every so many steps, and after the last; once for each step."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._every = rollouts.plan.config.evaluation.every

    async def if_due(self) -> None:
        """Between two steps. One that is due when a run goes on was not made, or not to its end,
        in the life before."""
        step = self._rollouts.version.number
        if step == 0:
            await self._measure("before the first step")
        elif self._every and step % self._every == 0 and step != self._rollouts.plan.steps:
            await self._measure(f"after step {step}")

    async def at_end(self) -> None:
        await self._measure("after the last step")

    async def _measure(self, when: str) -> None:
        rollouts = self._rollouts
        known = any(measured.step == rollouts.version.number for measured in rollouts.held_out)
        if rollouts.plan.held_out.tasks and not known:
            await rollouts.evaluate(when)
