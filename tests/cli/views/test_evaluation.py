"""The output of evaluations: exact figures, and texts whose escapes cannot move the cursor."""

from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from plimsoll.cli.terminal.console import MIN_WIDTH, print_all, print_table
from plimsoll.cli.views.evaluation import closing, live, pool_line, progress_line
from plimsoll.cli.views.text import duration, figure, plain
from plimsoll.runs.evaluation.trial_run import RunningTrial
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.runs.files.results import Row, Tally
from plimsoll.sandboxes.pool.options import Reuse
from plimsoll.sandboxes.pool.stats import PoolStats, Quantiles
from plimsoll.trials.verdicts import Cause


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (1.0, "1.00"),
        (0.5, "0.50"),
        (2 / 3, "0.67"),
        (0.999, "0.999"),
        (0.0004, "0.0004"),
        (-1.0, "-1.00"),
    ],
)
def test_a_fraction_is_never_rounded_to_a_whole_number(value: float | None, shown: str):
    assert figure(value) == shown


def test_escapes_in_grader_output_cannot_move_the_cursor():
    assert plain("a\x1b[2Jb\r\nc\t") == "a\\x1b[2Jb c"
    assert plain("größer · [bold]x[/bold]") == "größer · [bold]x[/bold]"


class ShownEvaluation:
    """The attributes of an evaluation that its views read."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.total = 0
        self.earlier = 0
        self.seconds = 0.0
        self.tally = Tally()
        self.running: list[RunningTrial] = []
        self.canaries = None


@pytest.fixture
def evaluation(tmp_path: Path) -> ShownEvaluation:
    return ShownEvaluation(RunDirectory(tmp_path / "run"))


def void_row(reason: str) -> Row:
    return Row(
        task="a",
        attempt=1,
        verdict="void",
        reward=None,
        rewards=None,
        ending=None,
        cause=Cause.GRADER,
        reason=reason,
        seconds=1.0,
    )


def shown(evaluation: ShownEvaluation) -> str:
    console = Console(file=StringIO(), width=200, markup=False, highlight=False)
    summary = evaluation.tally.summary(tasks=1, seconds=1.0)
    for line in closing(evaluation, summary, invalid=(), left_out={}, interrupted=False):
        console.print(line)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_without_graded_trials_no_mean_is_shown(evaluation: ShownEvaluation):
    evaluation.tally.add(void_row("no reward was written"))
    assert progress_line(evaluation) == "1/0 trials · graded 0 · void grader 1"
    table = shown(evaluation).splitlines()
    assert table[1].split() == ["a", "0/1", "–", "grader", "1"]


def test_the_rate_and_the_time_left_are_those_of_the_trials_since_the_resume(
    evaluation: ShownEvaluation,
):
    evaluation.total, evaluation.earlier, evaluation.seconds = 100, 90, 60.0
    for _ in range(90):
        evaluation.tally.add(void_row("no reward was written"))
    assert progress_line(evaluation).endswith("void grader 90")
    evaluation.tally.add(void_row("no reward was written"))
    evaluation.tally.add(void_row("no reward was written"))
    assert progress_line(evaluation).endswith(f" · 2 trials/min · {duration(240)} left")
    assert "92 of 100 trials, 2 since the resume, in" in shown(evaluation)


def test_a_reason_is_shown_without_escapes(evaluation: ShownEvaluation):
    evaluation.tally.add(void_row("\x1b[31m[red]broken[/red]"))
    text = shown(evaluation)
    assert "\x1b" not in text
    assert "[red]broken[/red]" in text


def test_the_live_view_has_its_bar_on_a_separate_line(evaluation: ShownEvaluation):
    console = Console(file=StringIO(), width=100, force_terminal=True)
    console.print(live(evaluation, progress_line(evaluation)))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines()[1].strip() == "0/0 trials · graded 0 · void –"


def test_the_pool_line_shows_only_measured_figures():
    start = Quantiles(8, 0.31, 1.2)
    none = PoolStats(reuse=Reuse.NONE, hits=0, cold_starts=8, start=start, wait_cold=start)
    assert pool_line(none) == "sandboxes: start p50 310 ms p99 1.2 s"
    fresh = PoolStats(
        reuse=Reuse.FRESH,
        hits=6,
        cold_starts=2,
        start=start,
        wait_warm=Quantiles(6, 0.002, 0.0031),
        wait_cold=Quantiles(2, 0.3, 0.3),
    )
    assert pool_line(fresh) == (
        "pool fresh: 6 of 8 leases were ready · start p50 310 ms p99 1.2 s"
        " · wait warm p50 2 ms p99 3.1 ms · cold p50 300 ms p99 300 ms"
    )
    failed = PoolStats(
        reuse=Reuse.RESET, hits=0, cold_starts=0, failed_starts=3, retired={"it\x1bdied": 2}
    )
    said = pool_line(failed)
    assert said.endswith("0 of 0 leases were ready · failed starts 3 · retired: it\\x1bdied (2)")


@pytest.mark.parametrize("width", [20, 40, 57, 58, 59, 80])
def test_on_a_narrow_terminal_every_column_and_figure_is_whole(width: int):
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("task", overflow="fold", min_width=MIN_WIDTH)
    table.add_column("graded", justify="right", no_wrap=True)
    table.add_column("mean reward", justify="right", no_wrap=True)
    table.add_column("void", overflow="fold", min_width=MIN_WIDTH)
    table.add_row("a-rather-long-name-of-a-task", "1,000/2,000", "0.3333", "grader 19, task 3")
    file = StringIO()
    print_table(Console(file=file, width=width), table)
    head, first, *more = file.getvalue().splitlines()
    assert head.split() == ["task", "graded", "mean", "reward", "void"]
    name, *figures = first.split()[:3]
    assert figures == ["1,000/2,000", "0.3333"]
    assert len(name) >= MIN_WIDTH
    assert "…" not in file.getvalue()
    assert max(map(len, (head, first, *more))) <= max(width, 58)


def test_on_a_narrow_terminal_the_closing_table_names_every_task(evaluation: ShownEvaluation):
    row = void_row("no room")
    for cause in (Cause.GRADER, Cause.SANDBOX, Cause.TASK):
        evaluation.tally.add(msgspec.structs.replace(row, task="needs-internet", cause=cause))
    file = StringIO()
    summary = evaluation.tally.summary(tasks=1, seconds=1.0)
    lines = closing(evaluation, summary, invalid=(), left_out={}, interrupted=False)
    print_all(Console(file=file, width=40), lines)
    assert file.getvalue().splitlines()[1].startswith("needs-intern")
