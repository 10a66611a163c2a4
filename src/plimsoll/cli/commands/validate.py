"""`plimsoll validate`: see that tasks can be graded where they are to run."""

from pathlib import Path
from typing import Literal

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    every task is valid
  1    at least one is quarantined, or was not finished
  2    bad usage
  130  interrupted (143: terminated)
"""


@click.command("validate", epilog=EPILOG)
@click.argument("path", type=options.PATH)
@options.backend
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How often oracle and nop try each task.",
)
@options.concurrency
@options.workers
@options.engine
@options.pool
@options.task
@options.json_output
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="Where validation.json and quarantine.txt go.  [default: .plimsoll beside the tasks]",
)
@options.config
@options.assets
def command(
    path: Path,
    backend: str,
    repeat: int,
    concurrency: int | None,
    workers: int | None,
    engine: Literal["process", "ray"] | None,
    pool: str | None,
    pattern: str | None,
    as_json: bool,
    out: Path | None,
    config: Path | None,
    assets: Path | None,
) -> int:
    """Run the oracle and nop over the task or the folder of tasks at PATH.

    The oracle must be graded at a task's maximum and nop below it, every time, in real
    sandboxes under the real network policy. A task that fails this is quarantined with
    its reason. Other tasks' records stay as they are.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.validation import validate
    from plimsoll.config.run import default_concurrency
    from plimsoll.runs.validation.validate_run import ValidateRequest, ValidateRun

    request = ValidateRequest(
        path=path,
        backend=backend,
        repeat=repeat,
        concurrency=concurrency or default_concurrency(),
        workers=workers,
        engine=engine,
        pool=pool,
        pattern=pattern,
        out=out,
        config=config,
        assets=assets,
    )
    return validate(ValidateRun.prepare(request), as_json=as_json)
