"""`plimsoll eval`: run an agent over tasks and show what came of it."""

from pathlib import Path

import click

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    every trial is graded
  2    bad usage, or an invalid task
  3    at least one trial is void
  130  interrupted (143: terminated)
"""


@click.command("eval", epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--agent", default="oracle", show_default=True, metavar="NAME", help="oracle or nop.")
@click.option(
    "--backend",
    default="local",
    show_default=True,
    metavar="NAME",
    help="Where sandboxes run: local.",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="How often each task is tried.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Trials at once.  [default: one for each core, at least 2]",
)
@click.option("--task", "pattern", metavar="GLOB", help="Only tasks whose name matches.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run directory.  [default: runs/eval-<time>]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The config.  [default: plimsoll.toml where it is there]",
)
@click.option("--skip-invalid", is_flag=True, help="Name invalid tasks and run the rest.")
def command(
    path: Path,
    agent: str,
    backend: str,
    attempts: int,
    concurrency: int | None,
    pattern: str | None,
    as_json: bool,
    out: Path | None,
    config: Path | None,
    skip_invalid: bool,
) -> int:
    """Run an agent over the task or the folder of tasks at PATH.

    Every trial is graded or void. A mean is over graded trials only. What each trial did
    is kept in the run directory, one folder an attempt.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.evaluate import evaluate
    from plimsoll.runs.evaluate import Request, default_concurrency

    request = Request(
        path=path,
        agent=agent,
        backend=backend,
        attempts=attempts,
        concurrency=concurrency or default_concurrency(),
        pattern=pattern,
        out=out,
        config=config,
        skip_invalid=skip_invalid,
    )
    return evaluate(request, as_json=as_json)
