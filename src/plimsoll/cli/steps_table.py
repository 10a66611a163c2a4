"""The last steps of a run that trains, in a table."""

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from plimsoll.cli.render import NONE, figure, plain
from plimsoll.training.metrics.lines import StepMetrics, last_metrics

__all__ = ["steps_table"]

SHOWN = 8
HEADS = (
    *("step", "reward", "held-out", "flat", "entropy", "kl", "gradient", "age"),
    *("wait", "update", "tokens/s"),
)


def steps_table(metrics: Path, step: int, heldout: Mapping[int, float | None]) -> Table | None:
    """Up to a step, from the run's own journal; None where there are none."""
    lines = last_metrics(metrics, SHOWN, up_to=step)
    if not lines:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", style="yellow", no_wrap=True)
    for line in lines:
        table.add_row(*_row(line, heldout))
    return table


def _row(line: StepMetrics, heldout: Mapping[int, float | None]) -> tuple[str, ...]:
    update = line.update
    return (
        str(line.step),
        figure(line.reward),
        figure(heldout[line.step]) if line.step in heldout else "",
        f"{line.flat_groups}/{line.groups}",
        *(_short(value) for value in (update.entropy, update.kl, update.grad_norm)),
        str(line.age),
        f"{line.seconds.wait:.1f} s",
        f"{line.seconds.update:.1f} s",
        f"{line.tokens_per_second:,.0f}",
        plain(update.skipped),
    )


def _short(value: float | None) -> str:
    return NONE if value is None else f"{value:.2g}"
