"""The plot of a run: reward, age and sandbox start time over its steps."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from plimsoll.runs.files.steps import Step

__all__ = ["Curves", "draw"]

_TRAINING, _HELD_OUT, _QUIET = "#8a8f98", "#1d4e89", "#cccccc"
_FEW = 30
"""Below this number each point is marked: a line through a single point is invisible."""
_WIDTH = 56
"""Characters of the run's name in one line of the title."""


class _Panel(Protocol):
    """The used part of matplotlib's axes, whose keywords are untyped."""

    @property
    def xaxis(self) -> "_Axis": ...

    @property
    def yaxis(self) -> "_Axis": ...

    def plot(self, *args: object, **style: object) -> object: ...

    def bar(self, x: Sequence[float], height: Sequence[float], **style: object) -> object: ...

    def axhline(self, y: float, **style: object) -> object: ...

    def annotate(
        self, text: str, xy: tuple[float, float], xytext: tuple[float, float], **style: object
    ) -> object: ...

    def grid(self, **style: object) -> None: ...

    def legend(self, **style: object) -> object: ...

    def set(self, **style: object) -> object: ...

    def set_axisbelow(self, b: bool) -> None: ...

    def set_title(self, label: str, **style: object) -> object: ...


class _Axis(Protocol):
    def set_major_locator(self, locator: MaxNLocator) -> None: ...


class _Panels(Protocol):
    def subplots(self, rows: int, columns: int, **style: object) -> Sequence[_Panel]: ...

    def suptitle(self, t: str, **style: object) -> object: ...

    def savefig(self, fname: Path, **style: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Curves:
    """The data of the plot."""

    name: str
    steps: Sequence[Step]
    held_out: Sequence[tuple[int, float]]
    """Steps of held-out evaluations, and their rewards."""
    eta: int
    """The bound on age."""


def draw(curves: Curves, file: Path) -> None:
    """Write the plot as a PNG. Takes about a second; can run in a thread."""
    made = Figure(figsize=(9, 8), dpi=120, layout="constrained")
    FigureCanvasAgg(made)
    figure = cast("_Panels", made)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.3, 1.3))
    for panel, draw_one in zip(panels, (_rewards, _ages, _starts), strict=True):
        draw_one(panel, curves)
        panel.grid(axis="y", color=_QUIET, linewidth=0.5)
        panel.set_axisbelow(True)
    panels[-1].set(xlabel="step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    name = "\n".join(textwrap.wrap(curves.name, _WIDTH))
    figure.suptitle(name, x=0.01, ha="left", fontsize=11)
    part = file.with_suffix(".part")
    try:
        figure.savefig(part, format="png")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _rewards(panel: _Panel, curves: Curves) -> None:
    measured = [(step.step, step.reward) for step in curves.steps if step.reward is not None]
    panel.set_title("reward", loc="left", fontsize=10)
    _plot_line(panel, measured, label="training batches")
    if curves.held_out:
        panel.plot(*_coordinates(curves.held_out), "o-", color=_HELD_OUT, label="held-out tasks")
    for step, reward in {*curves.held_out[:1], *curves.held_out[-1:]}:
        panel.annotate(
            f"{reward:.2f}",
            (step, reward),
            (0, 7),
            textcoords="offset points",
            ha="center",
            color=_HELD_OUT,
        )
    panel.set(ylim=_limits([reward for _, reward in (*measured, *curves.held_out)]))
    panel.legend(loc="lower right", frameon=False)


def _ages(panel: _Panel, curves: Curves) -> None:
    panel.set_title("age of the oldest token trained on, in versions", loc="left", fontsize=10)
    numbers, ages = _coordinates([(step.step, step.age) for step in curves.steps])
    panel.bar(numbers, ages, color=_TRAINING, width=0.8)
    panel.axhline(curves.eta, color="black", linestyle="--", linewidth=1)
    panel.annotate(
        f"η = {curves.eta}: nothing older",
        (0.005, curves.eta),
        (0, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=8,
    )
    panel.set(ylim=(0, max(1.0, curves.eta, *ages) * 1.35))
    panel.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))


def _starts(panel: _Panel, curves: Curves) -> None:
    panel.set_title("start of a sandbox, median of each batch, in seconds", loc="left", fontsize=10)
    measured = [(step.step, found) for step in curves.steps if (found := step.sandbox_seconds)]
    _plot_line(panel, measured)
    panel.set(ylim=(0, max((found for _, found in measured), default=1.0) * 1.2))


def _plot_line(panel: _Panel, points: Sequence[tuple[int, float]], **style: object) -> None:
    marker = "." if len(points) < _FEW else ""
    panel.plot(*_coordinates(points), color=_TRAINING, linewidth=1.2, marker=marker, **style)


def _coordinates(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """The y limits: 0 to 1, extended to the rewards."""
    low, high = min((0.0, *values)), max((1.0, *values))
    room = (high - low) * 0.06
    return low - room, high + room
