"""`plimsoll validate`: check that tasks can be graded on a backend."""

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
  129  the terminal was closed; continue with `plimsoll resume`
  130  interrupted (143: terminated); continue with `plimsoll resume`
"""


@click.command(
    "validate", short_help="Prove with oracle and nop that tasks can be graded.", epilog=EPILOG
)
@click.argument("path", type=options.PATH)
@options.backend
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Trials of each task by oracle and by nop.",
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
    help="The folder of validation.json and quarantine.txt.  [default: .plimsoll beside the tasks]",
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

    In real sandboxes with the real network policy, the oracle must get the maximum reward of a task
    and nop less, every time. A task that fails is quarantined with the reason. Records of other
    tasks stay unchanged.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.validation import validate
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
