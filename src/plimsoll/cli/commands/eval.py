"""`plimsoll eval`: run an agent over tasks and show the results."""

from pathlib import Path
from typing import Literal

import click

from plimsoll.cli import options

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    every trial is graded
  2    bad usage, or an invalid task
  3    at least one trial is void, or the breaker stopped the run
  129  the terminal was closed; continue with `plimsoll resume`
  130  interrupted (143: terminated); continue with `plimsoll resume`
"""


@click.command("eval", short_help="Run an agent over a task or a folder of tasks.", epilog=EPILOG)
@click.argument("path", type=options.PATH)
@click.option(
    "--agent",
    default="oracle",
    show_default=True,
    metavar="NAME",
    shell_complete=options.completes(*options.AGENTS),
    help=f"The agent: {', '.join(options.AGENTS[:-1])} or {options.AGENTS[-1]}.",
)
@click.option(
    "--policy",
    multiple=True,
    metavar="URL",
    help="An OpenAI-compatible server of the policy, repeated for each replica; or scripted:FILE."
    "  [default: [policy] urls]",
)
@click.option(
    "--model", metavar="NAME", help="The model name on the server.  [default: its only model]"
)
@click.option(
    "--turns",
    type=click.IntRange(min=1),
    metavar="N",
    help="The limit of answers in a trial.  [default: no limit]",
)
@click.option(
    "--agent-layer",
    "layer",
    type=options.PATH,
    metavar="DIR",
    help="The folder that `plimsoll bake` made.  [default: [agents] layer]",
)
@options.backend
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Trials of each task.",
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
    help="The run directory.  [default: runs/eval-<time>]",
)
@options.config
@options.assets
@click.option("--skip-invalid", is_flag=True, help="Name invalid tasks and run the rest.")
@click.option(
    "--validated",
    is_flag=True,
    help="Refuse to start unless every task is validated on the backend.",
)
@click.option("--skip-quarantined", is_flag=True, help="Name quarantined tasks and run the rest.")
@click.option(
    "--validation",
    type=options.PATH,
    metavar="DIR",
    help="The folder with the records of `plimsoll validate`."
    "  [default: .plimsoll beside the tasks]",
)
@click.option(
    "--canary-every",
    type=click.IntRange(min=0),
    metavar="N",
    help="An oracle trial of a solvable task for every N trials, 0 for none."
    "  [default: 200, 0 in shorter runs]",
)
@options.keep_going
def command(
    path: Path,
    agent: str,
    policy: tuple[str, ...],
    model: str | None,
    turns: int | None,
    layer: Path | None,
    backend: str,
    attempts: int,
    concurrency: int | None,
    workers: int | None,
    engine: Literal["process", "ray"] | None,
    pool: str | None,
    pattern: str | None,
    as_json: bool,
    out: Path | None,
    config: Path | None,
    assets: Path | None,
    skip_invalid: bool,
    validated: bool,
    skip_quarantined: bool,
    validation: Path | None,
    canary_every: int | None,
    keep_going: bool,
) -> int:
    """Run an agent over the task or the folder of tasks at PATH.

    Every trial is graded or void; means are over graded trials only. The run directory has one
    folder for each trial. The breaker stops a run whose rewards would be worthless and prints the
    reason.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.terminal.evaluation import evaluate
    from plimsoll.config.run import default_concurrency
    from plimsoll.runs.evaluation.eval_run import EvalRequest, EvalRun

    request = EvalRequest(
        path=path,
        agent=agent,
        backend=backend,
        attempts=attempts,
        concurrency=concurrency or default_concurrency(),
        workers=workers,
        engine=engine,
        pool=pool,
        pattern=pattern,
        out=out,
        config=config,
        assets=assets,
        skip_invalid=skip_invalid,
        validated=validated,
        validation=validation,
        skip_quarantined=skip_quarantined,
        canary_every=canary_every,
        keep_going=keep_going,
        policy=policy,
        model=model,
        turns=turns,
        layer=layer,
    )
    return evaluate(EvalRun.prepare(request), as_json=as_json)
