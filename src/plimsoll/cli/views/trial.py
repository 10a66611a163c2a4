"""One trial, its verdict and its trajectory: found, printed and exported by `plimsoll show`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.text import Text

from plimsoll.cli.terminal.console import console
from plimsoll.cli.views.text import command, count, duration, figure, plain
from plimsoll.core.errors import UsageError
from plimsoll.trajectories.export.atif import to_atif
from plimsoll.trajectories.export.conversations import Conversation, choose_branches, conversations
from plimsoll.trajectories.export.jsonl import to_jsonl
from plimsoll.trajectories.export.rendering import render, summary_line, token_table
from plimsoll.trajectories.messages import Message
from plimsoll.trajectories.records import Exchange, Trouble
from plimsoll.trajectories.trajectory import Trajectory
from plimsoll.trajectories.trajectory_file import FILE_NAME, find_trajectory, read_trajectory
from plimsoll.trials.record import AgentEnd, VerdictFile
from plimsoll.trials.verdicts import CAUSES, Graded, Verdict, Void

__all__ = ["FoundTrial", "find_trial", "print_json", "print_shown", "write_export"]

VERDICT = "verdict.json"
NAMED = 3


@dataclass(frozen=True, slots=True)
class FoundTrial:
    """The parts of a trial that exist, at least one of them."""

    folder: Path
    verdict: VerdictFile | None
    trajectory: Trajectory | None

    @property
    def reward(self) -> float | None:
        verdict = self.verdict and self.verdict.verdict
        return verdict.reward if isinstance(verdict, Graded) else None


def find_trial(path: Path) -> FoundTrial:
    """Read the trial in a folder, or the trial of a trajectory file."""
    if path.is_file():
        return FoundTrial(path.parent, _read_verdict(path.parent), read_trajectory(path))
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder; show takes the folder of a trial")
    file = find_trajectory(path)
    verdict = _read_verdict(path)
    if verdict is None and file is None:
        raise UsageError(_no_trial(path))
    return FoundTrial(path, verdict, None if file is None else read_trajectory(file))


def _no_trial(path: Path) -> str:
    if (trials := path / "trials").is_dir():
        names = sorted(trial.name for trial in trials.iterdir())[:NAMED]
        named = f": {', '.join(names)}" if names else ", which is empty"
        return f"{path} is a run; show one of its trials, in {trials}{named}"
    return f"{path} holds neither {VERDICT} nor {FILE_NAME}, so it is not the folder of a trial"


def _read_verdict(folder: Path) -> VerdictFile | None:
    file = folder / VERDICT
    try:
        return msgspec.json.decode(file.read_bytes(), type=VerdictFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def print_shown(shown: FoundTrial, *, branch: int | None, full: bool, tokens: bool) -> None:
    """Print the verdict, the figures, and the messages or their tokens."""
    out = console(stderr=False)
    trajectory = shown.trajectory
    branches: list[Conversation] = []
    if trajectory is not None:
        branches = conversations(trajectory)
    # First: the branch may not exist.
    chosen = branches if trajectory is None else choose_branches(branches, branch)
    for line in _head(shown):
        out.print(line, soft_wrap=not out.is_terminal)
    if trajectory is None:
        out.print(Text("no trajectory: the agent made no request to the policy", style="dim"))
        return
    for line in _summary(trajectory, branches):
        out.print(line, soft_wrap=not out.is_terminal)
    if tokens:
        out.print()
        out.print(token_table(chosen))
    else:
        alone = branch is not None
        for part in render(chosen, trajectory.troubles, full=full, alone=alone):
            out.print(part)
    out.print()
    see = command("show", shown.folder, "--full")
    out.print(f"see: {see} · --tokens · --branch N · --export atif")


def _head(shown: FoundTrial) -> Iterator[Text]:
    if shown.verdict is not None:
        yield from _verdict_lines(shown.verdict)
    elif shown.trajectory is not None:
        about = shown.trajectory.opened.about
        if "task" in about:
            yield Text("no verdict: the trial is running or was killed", style="yellow")
        labels = " · ".join(f"{name} {value}" for name, value in about.items())
        yield Text(
            plain(f"session {shown.trajectory.opened.session}{' · ' if labels else ''}{labels}")
        )


def _summary(trajectory: Trajectory, branches: list[Conversation]) -> Iterator[Text]:
    yield Text(summary_line(trajectory, branches))
    if not trajectory.complete:
        yield Text(f"unfinished: {plain(trajectory.problem)}", style="yellow")


class ShownBranch(msgspec.Struct, omit_defaults=True):
    """A branch in `--json`."""

    branch: int
    reason: str
    left: int | None
    shared: int
    messages: list[Message]
    turns: list[Exchange]


class ShownTrajectory(msgspec.Struct):
    """A trajectory in `--json`."""

    session: str
    about: dict[str, str]
    complete: bool
    problem: str
    ending: str | None
    branches: list[ShownBranch]
    troubles: list[Trouble]


class ShownTrial(msgspec.Struct):
    """The object that `--json` prints."""

    verdict: VerdictFile | None
    trajectory: ShownTrajectory | None


def print_json(shown: FoundTrial, *, branch: int | None) -> None:
    trajectory = None if shown.trajectory is None else _as_object(shown.trajectory, branch)
    click.echo(msgspec.json.encode(ShownTrial(shown.verdict, trajectory)))


def _as_object(trajectory: Trajectory, branch: int | None) -> ShownTrajectory:
    return ShownTrajectory(
        session=trajectory.opened.session,
        about=trajectory.opened.about,
        complete=trajectory.complete,
        problem=trajectory.problem,
        ending=trajectory.closed.ending if trajectory.closed else None,
        branches=[
            ShownBranch(
                branch=one.number,
                reason=one.reason,
                left=one.origin,
                shared=one.shared,
                messages=[record.message for record in one.messages],
                turns=list(one.exchanges),
            )
            for one in choose_branches(conversations(trajectory), branch)
        ],
        troubles=list(trajectory.troubles),
    )


def write_export(
    shown: FoundTrial, format_name: str, *, branch: int | None, out: Path | None
) -> None:
    """Write a trajectory in another format, to a file or to standard output."""
    if shown.trajectory is None:
        raise UsageError(f"{shown.folder} has no trajectory: its agent made no request")
    pieces = _exported(shown.trajectory, format_name, branch, shown.reward)
    if out is None:
        for piece in pieces:
            click.echo(piece, nl=False)
        return
    # All of it before the file is opened: an export that fails keeps an existing file.
    data = b"".join(pieces)
    try:
        size = out.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror or error}") from error
    click.echo(f"{out}: {size:,} bytes", err=True)


def _exported(
    trajectory: Trajectory, format_name: str, branch: int | None, reward: float | None
) -> Iterator[bytes]:
    if format_name == "jsonl":
        yield from to_jsonl(trajectory, branch=branch, reward=reward)
    else:
        yield msgspec.json.encode(to_atif(trajectory, branch=branch, reward=reward)) + b"\n"


def _verdict_lines(file: VerdictFile) -> Iterator[Text]:
    """The verdict, then its details, one named line each."""
    verdict = file.verdict
    style = "yellow" if isinstance(verdict, Void) else ""
    yield Text(_verdict_text(verdict), style=style)
    if isinstance(verdict, Graded) and len(verdict.rewards) > 1:
        numbers = (f"{plain(name)} {figure(number)}" for name, number in verdict.rewards.items())
        yield _named_line("rewards", ", ".join(numbers))
    for number, evidence in enumerate(verdict.evidence):
        where = f"{plain(evidence.where)}  " if evidence.where else ""
        yield _named_line("" if number else "evidence", f"{where}{plain(evidence.what)}")
    if isinstance(verdict, Void):
        yield _named_line("remedy", CAUSES[verdict.cause].remedy)
    several = len(file.steps) > 1
    for number, (name, of_step) in enumerate(file.steps.items() if several else ()):
        yield _named_line("" if number else "steps", f"{plain(name)}: {_verdict_text(of_step)}")
    for name, end in file.ends.items():
        step = f"{plain(name)}: " if several else ""
        yield _named_line("agent", f"{step}{_end_text(end)}")
    where = f"{file.backend} {file.sandbox}".rstrip()
    about = (file.task, f"attempt {file.attempt}", file.agent, where, duration(file.seconds))
    yield _named_line("trial", plain(" · ".join(about)))


def _verdict_text(verdict: Verdict) -> str:
    if isinstance(verdict, Graded):
        return f"graded: {figure(verdict.reward)} · {verdict.ending}"
    return f"void: {verdict.cause} · {plain(verdict.reason)}"


def _end_text(end: AgentEnd) -> str:
    parts: list[str] = [end.ending]
    if end.detail:
        parts.append(plain(end.detail))
    if end.exit_code is not None:
        parts.append(f"exit {end.exit_code}")
    if end.turns is not None:
        parts.append(count(end.turns, "turn"))
    return " · ".join(parts)


def _named_line(name: str, text: str) -> Text:
    return Text(f"  {name:<10} {text}")
