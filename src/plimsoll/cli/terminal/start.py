"""Starts or resumes the run of a config in the foreground, with training if it names a policy."""

import importlib.util
import os
from pathlib import Path

from plimsoll.cli.terminal.console import Screen
from plimsoll.cli.terminal.foreground import run_in_foreground
from plimsoll.cli.views.run import print_begin, print_plan
from plimsoll.config.file import load_config
from plimsoll.core.errors import UsageError
from plimsoll.runs.evaluation.held_out_schedule import HeldOutSchedule
from plimsoll.runs.rollouts import Rollouts

__all__ = ["RolloutRun", "start_run"]

_TRAINING = ("torch", "transformers", "safetensors", "jinja2", "numpy", "matplotlib")
"""Packages that training needs."""


class RolloutRun:
    """A run that rolls out batches without training."""

    lingers = False
    weights = None

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts: Rollouts | None = rollouts

    @property
    def doing(self) -> str:
        return "" if self.rollouts is None else self.rollouts.doing

    async def run(self, screen: Screen) -> None:
        rollouts = self.rollouts
        assert rollouts is not None
        policy = rollouts.plan.policy
        print_plan(rollouts.plan, screen, None if policy is None else f"policy {policy.urls[0]}")
        async with rollouts:
            print_begin(rollouts, screen)
            held_out = HeldOutSchedule(rollouts)
            await held_out.if_due()
            async for batch in rollouts.batches():
                await rollouts.commit(batch)
                await held_out.if_due()
            await held_out.at_end()


def start_run(config: Path, *, out: Path | None, keep_going: bool, as_json: bool) -> int:
    """Start or resume the run of a config and return the exit status."""
    loaded, name = load_config(config), config.stem
    if loaded.training.policy is None:
        rollouts = Rollouts(loaded, out=out, name=name, trains=False, keep_going=keep_going)
        return run_in_foreground(RolloutRun(rollouts), as_json=as_json)
    _check_installed()
    # Imported here: a run without training needs no torch.
    from plimsoll.cli.terminal.training_run import TrainingRun, follow

    if int(os.environ.get("RANK", "0")):
        return follow(loaded)
    run = TrainingRun(loaded, out=out, name=name, keep_going=keep_going)
    return run_in_foreground(run, as_json=as_json)


def _check_installed() -> None:
    """Raise `UsageError` for missing packages of training. Imports none of them."""
    missing = [name for name in _TRAINING if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"training needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'plimsoll-rl[train]'"
        )
