"""`plimsoll run`: roll out batch after batch, and train on them where the config says so."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["EPILOG", "command", "keep_going"]

EPILOG = """\b
Exit status:
  0    it came to its end: all steps, or all epochs, are done
  2    bad usage, an invalid task, or workers that cannot be started
  3    it stopped before: the breaker tripped, no task is left, or it cannot go on
  130  interrupted (143: terminated); `plimsoll resume` goes on with it
"""

keep_going = click.option(
    "--keep-going", is_flag=True, help="Run to the end whatever the breaker finds."
)


@click.command("run", epilog=EPILOG)
@click.argument("config", type=options.PATH)
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="The run directory.  [default: runs/<config>-<time>]",
)
@keep_going
@options.json_output
def command(config: Path, out: Path | None, keep_going: bool, as_json: bool) -> int:
    """Roll out what CONFIG says: tasks, agent, policy, groups, steps. With [training] policy,
    train on it.

    Every trial is in the ledger before it starts. A run that was stopped or killed goes on with
    `plimsoll resume`, and loses no prompt. Ctrl-C lets running trials end; a second one does not.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.start import start_run
    from plimsoll.core.errors import UsageError
    from plimsoll.ledger.journal.location import has_ledger

    if out is not None and has_ledger(out):
        raise UsageError(f"{out} is a run already: `plimsoll resume {out}` goes on with it")
    return start_run(config, out=out, keep_going=keep_going, as_json=as_json)
