"""`plimsoll simulate`: compare rules of admission on the same simulated rollouts."""

import math
from pathlib import Path

import click

from plimsoll.cli import options

__all__ = ["command"]

KINDS = ("constant", "lognormal", "stragglers", "hung")
MOST = 4096
"""The upper bound of options: larger simulations would take too long."""
_COUNT, _ANY = click.IntRange(1, MOST), click.IntRange(0, MOST)

EPILOG = """\b
Exit status:
  0    simulated
  2    bad usage, or a plot that cannot be written
"""


@click.command("simulate", short_help="Compare scheduling rules on a virtual clock.", epilog=EPILOG)
@click.option(
    "--durations",
    type=click.Choice(KINDS),
    default="lognormal",
    show_default=True,
    help="The distribution of rollout durations, in units of their median.",
)
@click.option(
    "--batch-groups", type=_COUNT, default=8, show_default=True, help="B: groups in a batch."
)
@click.option(
    "--tau",
    type=_ANY,
    default=2,
    show_default=True,
    help="τ: batches generated ahead of the trainer.",
)
@click.option(
    "--eta", type=_ANY, default=8, show_default=True, help="η: the bound on age, in versions."
)
@click.option(
    "--group-size", type=_COUNT, default=1, show_default=True, help="n: rollouts in a group."
)
@click.option("--max-running", type=int, help="C: concurrent rollouts.  [default: (τ + 1)·B·n]")
@click.option(
    "--steps",
    type=click.IntRange(2, 100_000),
    default=200,
    show_default=True,
    help="The number of training steps.",
)
@click.option(
    "--step-seconds",
    type=click.FloatRange(0, MOST, min_open=True),
    default=1.0,
    show_default=True,
    help="The time of a training step.",
)
@click.option(
    "--slack",
    type=click.FloatRange(0, MOST),
    default=0.5,
    show_default=True,
    help="The time that a batch waits for a straggler.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The seed of all random draws."
)
@click.option("--no-restart", is_flag=True, help="Do not restart in the middle of each run.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list and nothing else.")
@click.option(
    "--plot",
    type=options.FILE,
    metavar="FILE",
    help="Also draw a plot, as SVG.",
)
def command(
    durations: str,
    batch_groups: int,
    tau: int,
    eta: int,
    group_size: int,
    max_running: int | None,
    steps: int,
    step_seconds: float,
    slack: float,
    seed: int,
    no_restart: bool,
    as_json: bool,
    plot: Path | None,
) -> int:
    """Simulate training under several rules, and compare speed, age, waste and bias.

    Time is virtual. The row `plimsoll` uses the ledger's code of real runs.
    """
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.simulation import show
    from plimsoll.core.errors import UsageError
    from plimsoll.ledger.settings import Settings
    from plimsoll.ledger.simulator.scenario import Plan, named

    if math.isnan(step_seconds) or math.isnan(slack):
        raise UsageError("--step-seconds and --slack are numbers of seconds, not nan")
    rollouts = (tau + 1) * batch_groups * group_size if max_running is None else max_running
    settings = Settings(
        batch_groups=batch_groups,
        max_running=rollouts,
        depth=tau,
        max_staleness=eta,
        group_size=group_size,
    )
    plan = Plan(
        settings=settings,
        steps=steps,
        durations=named(durations),
        step_seconds=step_seconds,
        slack=slack,
        seed=seed,
        check_every=100,
    )
    return show(plan, restart=not no_restart, as_json=as_json, plot=plot)
