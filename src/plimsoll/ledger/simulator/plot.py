"""Plot of a comparison: speed against age, and ages over the steps of each run."""

import math
from collections.abc import Iterator
from html import escape

from plimsoll.ledger.simulator.scenario import Plan, Run

__all__ = ["draw"]

WIDTH, HEIGHT = 860, 380
LEFT, TOP, BOTTOM = 52, 46, 330
PANEL, GAP = 350, 72
COLOURS = ("#8a8f98", "#d1495b", "#edae49", "#66a182", "#1d4e89")


def draw(runs: dict[str, Run], plan: Plan) -> str:
    """Draw an SVG document."""
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_speed_against_age(runs, plan, LEFT),
        *_ages_over_steps(runs, plan, LEFT + PANEL + GAP),
        *_legend(runs),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


class _Axis:
    """A logarithmic axis: positions of log(value + 1)."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self._low, self._span = math.log1p(low), math.log1p(high) - math.log1p(low) or 1.0
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        share = (math.log1p(value) - self._low) / self._span
        return round(self._first + share * (self._last - self._first), 1)


def _ticks(most: float) -> list[int]:
    ticks = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    return [tick for tick in ticks if tick <= most]


def _frame(title: str, x: int, across: str, ages: _Axis, most_age: float) -> Iterator[str]:
    yield _text(x, TOP - 14, title, weight="bold")
    for tick in _ticks(most_age):
        y = ages.at(tick)
        yield f'<line x1="{x}" x2="{x + PANEL}" y1="{y}" y2="{y}" stroke="#e6e6e6"/>'
        yield _text(x - 6, y + 4, str(tick), anchor="end")
    yield _text(x + PANEL, BOTTOM + 30, across, anchor="end")


def _bound(x: int, ages: _Axis, bound: int) -> Iterator[str]:
    y = ages.at(bound)
    ends = f'x1="{x}" x2="{x + PANEL}" y1="{y}" y2="{y}"'
    yield f'<line {ends} stroke="#333" stroke-dasharray="4 3"/>'
    yield _text(x + 4, y - 4, f"η = {bound}")


def _ages(runs: dict[str, Run], plan: Plan) -> tuple[_Axis, float]:
    most = max(plan.settings.max_staleness, *(run.max_age for run in runs.values())) * 1.15
    return _Axis(BOTTOM, TOP, 0, most), most


def _speed_against_age(runs: dict[str, Run], plan: Plan, x: int) -> Iterator[str]:
    ages, most_age = _ages(runs, plan)
    speeds = {name: run.seconds / max(1, run.steps) for name, run in runs.items()}
    slowest = max(speeds.values()) * 1.2
    across = _Axis(x, x + PANEL, min(speeds.values()) * 0.8, slowest)
    yield from _frame("oldest sample trained on (versions)", x, "time per step", ages, most_age)
    for tick in _ticks(slowest):
        if tick >= min(speeds.values()) * 0.8:
            yield _text(across.at(tick), BOTTOM + 16, str(tick), anchor="middle")
    yield from _bound(x, ages, plan.settings.max_staleness)
    for (name, run), colour in zip(runs.items(), COLOURS, strict=True):
        position = f'cx="{across.at(speeds[name])}" cy="{ages.at(run.max_age)}"'
        yield f'<circle {position} r="6" fill="{colour}"><title>{escape(name)}</title></circle>'


def _ages_over_steps(runs: dict[str, Run], plan: Plan, x: int) -> Iterator[str]:
    ages, most_age = _ages(runs, plan)
    yield from _frame("oldest sample of each step (versions)", x, "step", ages, most_age)
    for part in range(5):
        step = plan.steps * part // 4
        yield _text(x + PANEL * part / 4, BOTTOM + 16, str(step), anchor="middle")
    yield from _bound(x, ages, plan.settings.max_staleness)
    for (name, run), colour in zip(runs.items(), COLOURS, strict=True):
        width = PANEL / max(1, len(run.ages) - 1)
        points = " ".join(f"{x + n * width:.1f},{ages.at(age)}" for n, age in enumerate(run.ages))
        yield (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3">'
            f"<title>{escape(name)}</title></polyline>"
        )


def _legend(runs: dict[str, Run]) -> Iterator[str]:
    x = LEFT
    for name, colour in zip(runs, COLOURS, strict=True):
        yield f'<rect x="{x}" y="{HEIGHT - 14}" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 15, HEIGHT - 5, name)
        x += 40 + 7 * len(name)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
