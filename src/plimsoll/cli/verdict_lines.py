"""A verdict as `plimsoll show` says it: what it is, what it rests on, what to do about it."""

from collections.abc import Iterator

from rich.text import Text

from plimsoll.cli.render import duration, figure, plain
from plimsoll.trials.record import AgentEnd, VerdictFile
from plimsoll.trials.verdicts import CAUSES, Graded, Verdict, Void

__all__ = ["verdict_lines"]


def verdict_lines(file: VerdictFile) -> Iterator[Text]:
    """The verdict first; then what is known of it, each with its name before it."""
    verdict = file.verdict
    style = "yellow" if isinstance(verdict, Void) else ""
    yield Text(_verdict(verdict), style=style)
    if isinstance(verdict, Graded) and len(verdict.rewards) > 1:
        numbers = (f"{plain(name)} {figure(number)}" for name, number in verdict.rewards.items())
        yield _line("rewards", ", ".join(numbers))
    for number, evidence in enumerate(verdict.evidence):
        where = f"{plain(evidence.where)}  " if evidence.where else ""
        yield _line("" if number else "evidence", f"{where}{plain(evidence.what)}")
    if isinstance(verdict, Void):
        yield _line("remedy", CAUSES[verdict.cause].remedy)
    several = len(file.steps) > 1
    for number, (name, of_step) in enumerate(file.steps.items() if several else ()):
        yield _line("" if number else "steps", f"{plain(name)}: {_verdict(of_step)}")
    for name, end in file.ends.items():
        step = f"{plain(name)}: " if several else ""
        yield _line("agent", f"{step}{_end(end)}")
    where = f"{file.backend} {file.sandbox}".rstrip()
    about = (file.task, f"attempt {file.attempt}", file.agent, where, duration(file.seconds))
    yield _line("trial", plain(" · ".join(about)))


def _verdict(verdict: Verdict) -> str:
    if isinstance(verdict, Graded):
        return f"graded: {figure(verdict.reward)} · {verdict.ending}"
    return f"void: {verdict.cause} · {plain(verdict.reason)}"


def _end(end: AgentEnd) -> str:
    parts: list[str] = [end.ending]
    if end.detail:
        parts.append(plain(end.detail))
    if end.exit_code is not None:
        parts.append(f"exit {end.exit_code}")
    if end.turns is not None:
        parts.append(f"{end.turns:,} {'turn' if end.turns == 1 else 'turns'}")
    return " · ".join(parts)


def _line(name: str, text: str) -> Text:
    return Text(f"  {name:<10} {text}")
