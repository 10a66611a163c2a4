"""`plimsoll run`: roll out batch after batch, without training on them."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["EPILOG", "command", "keep_going"]

EPILOG = """\b
Exit status:
  0    it came to its end: all steps, or all epochs, are done
  2    bad usage, an invalid task, or workers that cannot be started
  3    it stopped before: the breaker tripped, or no task is left
  130  interrupted (143: terminated); `plimsoll resume` goes on with it
"""

keep_going = click.option(
    "--keep-going", is_flag=True, help="Run to the end whatever the breaker finds."
)


@click.command("run", epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run directory.  [default: runs/<config>-<time>]",
)
@keep_going
@options.json_output
def command(config: Path, out: Path | None, keep_going: bool, as_json: bool) -> int:
    """Roll out what CONFIG says: tasks, agent, policy, groups, steps.

    Every trial is in the ledger before it starts. A run that was stopped or killed goes on with
    `plimsoll resume`, and loses no prompt. Ctrl-C lets running trials end; a second one does not.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.running import roll_out
    from plimsoll.core.errors import UsageError
    from plimsoll.ledger.ledger import FILE
    from plimsoll.runs.rollouts import Rollouts

    if out is not None and (out / FILE).exists():
        raise UsageError(f"{out} is a run already: `plimsoll resume {out}` goes on with it")
    rollouts = Rollouts(config, out=out, trains=False, keep_going=keep_going)
    return roll_out(rollouts, as_json=as_json)
