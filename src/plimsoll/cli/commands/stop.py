"""`plimsoll stop`: end a run, after its running trials or at once."""

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    ended, or not running
  2    bad usage: no such run, or it runs on another host
"""


@click.command("stop", short_help="Stop a run and wait for its end.", epilog=EPILOG)
@options.run
@click.option("--now", is_flag=True, help="Do not wait for running trials.")
@options.json_output
def command(run: str, now: bool, as_json: bool) -> int:
    """Stop RUN, the directory of a run or its name below runs/, and wait for its end.

    It starts no more trials. Running trials of `plimsoll run` have its grace period; those of an
    evaluation or a validation are cancelled. `plimsoll resume` runs unfinished trials again.
    """
    # Imported here: `plimsoll --help` needs none of it.
    import json

    from plimsoll.cli.views.text import command as command_line
    from plimsoll.runs.controller_process import controller, end_run, find_run, look_for_run
    from plimsoll.runs.evaluation.requests import can_resume

    directory = find_run(run)
    owner = controller(directory)
    if owner is not None:
        if not (now or as_json):
            click.echo(f"stopping {directory.path} (pid {owner.pid}): waiting for its end")
        end_run(owner, directory, now=now)
    if as_json:
        pid = None if owner is None else owner.pid
        click.echo(json.dumps({"run": directory.name, "pid": pid, "running": False}))
    elif owner is None:
        click.echo(f"{directory.path} is not running")
    elif look_for_run(run) is None:
        click.echo(f"{directory.path} ended before its first trial: there is nothing to resume")
    elif not can_resume(directory):
        click.echo(f"{directory.path} has ended")
    else:
        resume = command_line("resume", directory.path)
        click.echo(f"{directory.path} has ended · continue: {resume}")
    return 0
