"""The output of `plimsoll lint`: findings by task, then reason and remedy of each rule."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from plimsoll.cli.terminal.console import console
from plimsoll.cli.views.text import command, count, plain, product
from plimsoll.config.file import load_config
from plimsoll.core.errors import UsageError
from plimsoll.tasks.assets.staged_assets import load_assets
from plimsoll.tasks.lint.linter import ALL_RULES, LintResult, lint_tasks
from plimsoll.tasks.lint.parsed_task import LintSettings
from plimsoll.tasks.lint.rule import Finding, Severity
from plimsoll.tasks.lint.sarif import sarif
from plimsoll.tasks.loader import LoadedTasks, load_tasks
from plimsoll.workers.worker.backends import BACKENDS

__all__ = ["Request", "lint"]

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
ABOUT_FETCHES = {"fetch-then-zero", "fetch-without-network", "clone-at-build"}


@dataclass(frozen=True, slots=True)
class Request:
    """The tasks to lint, and the backend that will run them."""

    path: Path
    backend: str
    offline: bool
    assets: Path | None
    config: Path | None
    pattern: str | None


class Summary(msgspec.Struct, frozen=True):
    """The object that `--json` prints."""

    path: str
    backend: str
    offline: bool
    tasks: int
    errors: int
    warnings: int
    seconds: float
    findings: list[Finding]


def lint(request: Request, *, as_json: bool, sarif_file: Path | None) -> int:
    """Lint, print the findings, and return the exit status."""
    started = time.monotonic()
    settings = _settings(request)
    loaded = load_tasks(request.path, request.pattern)
    linted = list(_showing_progress(loaded, settings))
    findings = [finding for one in linted for finding in one.findings]
    summary = Summary(
        path=str(request.path),
        backend=request.backend,
        offline=request.offline,
        tasks=len(linted),
        errors=sum(finding.severity is Severity.ERROR for finding in findings),
        warnings=sum(finding.severity is Severity.WARNING for finding in findings),
        seconds=round(time.monotonic() - started, 3),
        findings=findings,
    )
    if sarif_file is not None:
        _write_sarif(sarif_file, linted, request.path)
    if as_json:
        click.echo(msgspec.json.encode(summary))
    else:
        _print(summary, linted, request, sarif_file)
    return 1 if summary.errors else 0


def _settings(request: Request) -> LintSettings:
    if request.backend not in BACKENDS:
        raise UsageError(f"no backend is called {request.backend!r}: choose {', '.join(BACKENDS)}")
    assets = load_assets(request.assets or load_config(request.config).assets.path)
    if assets is None:
        return LintSettings(request.backend, request.offline)
    return LintSettings(request.backend, request.offline, assets.covers)


def _showing_progress(loaded: LoadedTasks, settings: LintSettings) -> Iterator[LintResult]:
    """Lint with a progress bar on a terminal."""
    total = len(loaded.tasks) + len(loaded.invalid)
    err = console(stderr=True)
    columns = (TextColumn("lint"), BarColumn(40), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        job = bar.add_task("lint", total=total)
        for one in lint_tasks(loaded, settings):
            yield one
            bar.advance(job)


def _write_sarif(file: Path, linted: Sequence[LintResult], root: Path) -> None:
    text = msgspec.json.format(msgspec.json.encode(sarif(linted, ALL_RULES, root)), indent=2)
    try:
        file.write_bytes(text + b"\n")
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from error


def _print(
    summary: Summary, linted: Sequence[LintResult], request: Request, sarif_file: Path | None
) -> None:
    out = console(stderr=False)
    out.print(_first_line(summary), soft_wrap=True)
    for one in linted:
        if one.findings:
            out.print()
            _print_task(out, one)
    _print_rules(out, summary.findings)
    out.print()
    out.print(_closing_line(summary, linted), soft_wrap=True)
    see = list(_see(summary, request, sarif_file))
    if see:
        out.print(Text(f"see: {' · '.join(see)}"), soft_wrap=True)


def _first_line(summary: Summary) -> Text:
    where = f"{summary.backend}, offline" if summary.offline else summary.backend
    return Text(f"{product()} · lint for {where} · {count(summary.tasks, 'task')}")


def _print_task(out: Console, one: LintResult) -> None:
    out.print(Text(plain(one.task), style="bold"), soft_wrap=True)
    locations = [_location(finding) for finding in one.findings]
    wide = max(map(len, locations))
    rules = max(len(finding.rule) for finding in one.findings)
    for location, finding in zip(locations, one.findings, strict=True):
        line = Text(f"  {location:{wide}}  {finding.rule:{rules}}  ")
        line.append(f"{finding.severity:7}", style=COLOURS[finding.severity])
        line.append(f"  {plain(finding.message)}")
        out.print(line, soft_wrap=True)


def _location(finding: Finding) -> str:
    return plain(finding.file if finding.line is None else f"{finding.file}:{finding.line}")


def _print_rules(out: Console, findings: Iterable[Finding]) -> None:
    """Each rule once, in the order in which rules are listed."""
    counts = Counter(finding.rule for finding in findings)
    for rule in ALL_RULES:
        if rule.id in counts:
            out.print()
            out.print(Text(f"{rule.id} ({counts[rule.id]:,})", style="bold"))
            for word, text in (("why", rule.why), ("fix", rule.fix)):
                out.print(Text(f"  {word}  {text}"), soft_wrap=True)


def _closing_line(summary: Summary, linted: Sequence[LintResult]) -> Text:
    if not summary.findings:
        return Text(f"clean: {count(summary.tasks, 'task')} in {summary.seconds:.1f} s")
    wrong = sum(
        any(finding.severity is Severity.ERROR for finding in one.findings) for one in linted
    )
    parts = [
        f"{count(summary.errors, 'error')} in {count(wrong, 'task')}",
        count(summary.warnings, "warning"),
        f"{count(summary.tasks, 'task')} in {summary.seconds:.1f} s",
    ]
    return Text(" · ".join(parts), style="red" if summary.errors else "yellow")


def _see(summary: Summary, request: Request, sarif_file: Path | None) -> Iterator[str]:
    if ABOUT_FETCHES.intersection(finding.rule for finding in summary.findings):
        yield command("stage", request.path, "--to", "DIR")
    if sarif_file is not None:
        yield str(sarif_file)
    if summary.findings:
        yield "docs/lint.md"
