"""`plimsoll run`: roll out batches, and train on them if the config says so."""

from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    finished: all steps or all epochs are done
  2    bad usage, an invalid task, or workers that cannot be started
  3    stopped early: the breaker tripped, no task is left, or an error ended it
  129  the terminal was closed; continue with `plimsoll resume`
  130  interrupted (143: terminated); continue with `plimsoll resume`
"""


@click.command("run", short_help="Roll out tasks in batches, and train on them.", epilog=EPILOG)
@click.argument("config", type=options.PATH)
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="The run directory.  [default: runs/<config>-<time>]",
)
@options.keep_going
@options.json_output
def command(config: Path, out: Path | None, keep_going: bool, as_json: bool) -> int:
    """Roll out the tasks of CONFIG in groups and batches. With [training] policy, train on them.

    Every trial is in the ledger before it starts. `plimsoll resume` continues a stopped or killed
    run without losing a prompt. Ctrl-C lets running trials end; a second Ctrl-C does not.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.start import start_run
    from plimsoll.cli.views.text import command as command_line
    from plimsoll.core.errors import UsageError
    from plimsoll.ledger.journal.location import has_ledger

    if out is not None and has_ledger(out):
        resume = command_line("resume", out)
        raise UsageError(f"{out} is a run already: continue it with `{resume}`")
    return start_run(config, out=out, keep_going=keep_going, as_json=as_json)
