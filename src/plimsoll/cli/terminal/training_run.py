"""Runs that train, for `plimsoll run` and `plimsoll resume`. Imports torch."""

import signal
from pathlib import Path

from plimsoll.cli.terminal.console import Screen
from plimsoll.cli.views.run import print_begin, print_plan
from plimsoll.config.file import Config
from plimsoll.runs.rollouts import Rollouts
from plimsoll.training.trainer import Trainer, follow_rank_zero

__all__ = ["TrainingRun", "follow"]


def follow(config: Config) -> int:
    """Run a torchrun rank other than the first. It prints nothing."""
    # A terminal sends Ctrl-C to all ranks: the first rank ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_rank_zero(config)
    return 0


class TrainingRun:
    """A run that trains on its batches."""

    def __init__(self, config: Config, *, out: Path | None, name: str, keep_going: bool) -> None:
        self._trainer = Trainer(config, out=out, name=name, keep_going=keep_going)

    @property
    def rollouts(self) -> Rollouts | None:
        return self._trainer.rollouts

    @property
    def doing(self) -> str:
        return self._trainer.activity

    @property
    def lingers(self) -> bool:
        return self._trainer.is_learning

    @property
    def weights(self) -> Path | None:
        return self._trainer.weights

    async def run(self, screen: Screen) -> None:
        def planned(rollouts: Rollouts) -> None:
            print_plan(rollouts.plan, screen, self._trainer.description)

        def restored(rollouts: Rollouts) -> None:
            print_begin(rollouts, screen)

        await self._trainer.run(planned=planned, restored=restored)
