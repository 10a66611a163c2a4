"""`plimsoll stage`: fetch once what tasks fetch, for sandboxes without a network."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plimsoll.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from plimsoll.tasks.assets.asset import Asset
    from plimsoll.tasks.assets.local_sources import LocalSources
    from plimsoll.tasks.assets.plan import Plan, PlannedRequest
    from plimsoll.tasks.assets.stager import Outcome

__all__ = ["command"]

EPILOG = """\b
Exit status:
  0    all that tasks fetch and can be staged is there
  1    something could not be had, or is missing or damaged (--check)
  2    bad usage, or the folder is being staged by someone else
"""
SHOWN_TASKS = 3
NO_TASK = "no task of this run"


@click.command("stage", epilog=EPILOG)
@click.argument("path", type=options.PATH)
@click.option("--to", "folder", type=options.PATH, required=True, metavar="DIR",
              help="The assets folder, as a rule on shared storage.")  # fmt: skip
@options.task
@click.option("--from", "given", multiple=True, metavar="KIND:SOURCE=PATH",
              help="Use a local stand-in: git:URL=REPOSITORY-OR-BUNDLE, url:URL=FILE, "
              "wheels=FOLDER, npm=CACHE.")  # fmt: skip
@click.option("--python", "pythons", type=options.python_version, multiple=True, metavar="X.Y",
              help="Wheels for this Python.  [default: that of each image]")  # fmt: skip
@click.option("--check", is_flag=True, help="Verify digests, and change nothing.")
@options.json_output
def command(
    path: Path,
    folder: Path,
    pattern: str | None,
    given: tuple[str, ...],
    pythons: tuple[str, ...],
    check: bool,
    as_json: bool,
) -> int:
    """Stage what the task or the folder of tasks at PATH fetches.

    Repositories, files, wheels, uv and npm packages, each once. Started again, it fetches only
    what is missing or damaged.
    """
    from plimsoll.tasks.assets.local_sources import parse_local_sources

    if check:
        return _check(folder, as_json)
    return _stage(path, folder, pattern, parse_local_sources(given), pythons, as_json)


def _stage(
    path: Path,
    folder: Path,
    pattern: str | None,
    given: "LocalSources",
    pythons: Sequence[str],
    as_json: bool,
) -> int:
    # Imported here: `plimsoll --help` needs none of it.
    from plimsoll.cli.views.evaluation import console, plain
    from plimsoll.tasks.assets.plan import make_plan
    from plimsoll.tasks.assets.stager import Stager
    from plimsoll.tasks.assets.store import AssetStore
    from plimsoll.tasks.loader import load_tasks

    err = console(stderr=True)

    def say(text: str) -> None:
        err.print(plain(text), soft_wrap=True)

    loaded = load_tasks(path, pattern)
    for invalid in loaded.invalid:
        say(f"not read: {invalid.name}: {'; '.join(invalid.problems)}")
    plan = make_plan(loaded.tasks, pythons, given.requests())
    count, things = len(loaded.tasks), len(plan.requests)
    noun = "task fetches" if count == 1 else "tasks fetch"
    say(f"{count:,} {noun} {things:,} {'thing' if things == 1 else 'things'} that can be staged")
    with AssetStore.locked(folder) as store:
        try:
            outcome = Stager(store, given, say).stage(plan)
        except KeyboardInterrupt:
            say("interrupted; what was staged before stands, and the next start goes on from it")
            raise
    if as_json:
        _print_json(_summary(folder, plan, outcome))
    else:
        _close(console(stderr=False), folder, plan, outcome)
    return 0 if outcome.complete and not loaded.invalid else 1


def _check(folder: Path, as_json: bool) -> int:
    from plimsoll.cli.views.evaluation import console
    from plimsoll.tasks.assets.stager import check_assets

    assets, wrong = check_assets(folder)
    if as_json:
        _print_json({"folder": str(folder), "assets": len(assets.assets), "damaged": wrong})
        return 1 if wrong else 0
    out = console(stderr=False)
    for name, what in wrong.items():
        out.print(f"{name}: {what}", soft_wrap=True)
    if wrong:
        out.print(f"{len(wrong):,} wrong; `plimsoll stage TASKS --to {folder}` mends them",
                  soft_wrap=True)  # fmt: skip
    else:
        size = human(sum(asset.size for asset in assets.assets))
        out.print(f"{len(assets.assets):,} assets, {size}: all as staged", soft_wrap=True)
    return 1 if wrong else 0


def _close(out: "Console", folder: Path, plan: "Plan", outcome: "Outcome") -> None:
    from plimsoll.cli.views.evaluation import plain

    out.print(_table(outcome.assets.assets))
    lines = [
        f"not staged: {left.what}: {left.reason} ({_tasks(tuple(left.tasks))})"
        for left in plan.unstaged.values()
    ]
    if late := [wanted for wanted in plan.requests.values() if _reveals_tests(wanted)]:
        lines.append(f"{len(late):,} of these only tests or solutions fetch; staged, agents can "
                     f"read them: {', '.join(w.request.describe() for w in late[:3])}")  # fmt: skip
    for failure in outcome.failures:
        wanted = failure.request.describe()
        lines.append(f"cannot be had: {wanted}: {failure.reason} ({_tasks(failure.tasks)})")
    if outcome.failures:
        lines.append("give it by hand: --from git:URL=PATH, url:URL=FILE, wheels=FOLDER")
    if outcome.stopped:
        lines.append(f"stopped: {outcome.stopped}; what was staged before stands")
    count, size = len(outcome.assets.assets), sum(a.size for a in outcome.assets.assets)
    idle = "nothing to do" if outcome.complete else "nothing staged now"
    new = f"{len(outcome.staged):,} staged now" if outcome.staged else idle
    lines.append(f"{count:,} assets, {human(size)} · {new} · {folder / 'assets.toml'}")
    for line in lines:
        out.print(plain(line), soft_wrap=True)


def _reveals_tests(wanted: "PlannedRequest") -> bool:
    """Whether it may tell an agent what the tests look for. Packages do not."""
    return wanted.exposed_early and bool(wanted.tasks) and wanted.request.kind in ("git", "url")


def _table(assets: "Sequence[Asset]") -> "Table":
    from rich.table import Table

    from plimsoll.cli.views.evaluation import plain
    from plimsoll.tasks.assets.asset import ASSETS_MOUNT

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("asset")
    table.add_column("pin", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("mounted at")
    for asset in assets:
        first, *others = asset.pin.removeprefix("sha256:").split() or [""]
        pin = f"{first[:12]} +{len(others)}" if others else first[:20]
        where = asset.mount or f"{ASSETS_MOUNT}/{asset.path}"
        table.add_row(plain(f"{asset.kind} {asset.source}"), pin, human(asset.size), where)
    return table


def _tasks(names: Sequence[str]) -> str:
    if not names:
        return NO_TASK
    more = f" and {len(names) - SHOWN_TASKS:,} more" if len(names) > SHOWN_TASKS else ""
    return f"{', '.join(names[:SHOWN_TASKS])}{more}"


def human(size: int) -> str:
    """A number of bytes for a person."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def _summary(folder: Path, plan: "Plan", outcome: "Outcome") -> dict[str, Any]:
    return {
        "folder": str(folder),
        "assets": list(outcome.assets.assets),
        "staged": outcome.staged,
        "kept": outcome.reused,
        "failed": [
            {"what": f.request.describe(), "reason": f.reason, "tasks": list(f.tasks)}
            for f in outcome.failures
        ],
        "left": [
            {"what": left.what, "reason": left.reason, "tasks": list(left.tasks)}
            for left in plan.unstaged.values()
        ],
        "stopped": outcome.stopped,
    }


def _print_json(value: dict[str, Any]) -> None:
    import msgspec

    click.echo(msgspec.json.encode(value))
