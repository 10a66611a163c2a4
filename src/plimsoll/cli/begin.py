"""Begins a run, or goes on with one: with training where its config names a policy to train."""

import os
from pathlib import Path

from plimsoll.cli.driving import drive
from plimsoll.cli.running import RollOut
from plimsoll.runs.config import load_config
from plimsoll.runs.rollouts import Rollouts
from plimsoll.training.installed import check_installed

__all__ = ["begin"]


def begin(config: Path, *, out: Path | None, keep_going: bool, as_json: bool) -> int:
    """Run what a config says and return the exit status."""
    if load_config(config).training.policy is None:
        rollouts = Rollouts(config, out=out, trains=False, keep_going=keep_going)
        return drive(RollOut(rollouts), as_json=as_json)
    check_installed()
    # Imported here: a run that trains nothing needs no torch.
    from plimsoll.cli.training import Training, follow

    if int(os.environ.get("RANK", "0")):
        return follow(config)
    return drive(Training(config, out=out, keep_going=keep_going), as_json=as_json)
