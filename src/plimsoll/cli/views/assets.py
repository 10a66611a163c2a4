"""Staging of assets as `plimsoll stage` runs and prints it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from plimsoll.cli.terminal.console import MIN_WIDTH, console, print_table
from plimsoll.cli.views.text import byte_size, command, count, plain
from plimsoll.tasks.assets.asset import ASSETS_MOUNT, Asset
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.plan import Plan, PlannedRequest, make_plan
from plimsoll.tasks.assets.stager import Outcome, Stager, check_assets
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.loader import load_tasks

__all__ = ["check", "stage"]

SHOWN_TASKS = 3
SHOWN_ASSETS = 3
NO_TASK = "none of these tasks fetches it"


def stage(
    path: Path,
    folder: Path,
    pattern: str | None,
    sources: LocalSources,
    pythons: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Stage the assets of tasks and return the exit status."""
    err = console(stderr=True)

    def say(text: str) -> None:
        err.print(plain(text), soft_wrap=True)

    loaded = load_tasks(path, pattern)
    for invalid in loaded.invalid:
        say(f"not read: {invalid.name}: {'; '.join(invalid.problems)}")
    plan = make_plan(loaded.tasks, pythons, sources.requests())
    say(f"{count(len(loaded.tasks), 'task')}: {count(len(plan.requests), 'asset')} can be staged")
    with AssetStore.locked(folder) as store:
        try:
            outcome = Stager(store, sources, say).stage(plan)
        except KeyboardInterrupt:
            say("interrupted; staged assets are kept, and the next start continues from there")
            raise
    if as_json:
        click.echo(msgspec.json.encode(_summary(folder, plan, outcome)))
    else:
        _print_outcome(console(stderr=False), folder, plan, outcome)
    return 0 if outcome.complete and not loaded.invalid else 1


def check(folder: Path, *, as_json: bool) -> int:
    """Verify the digests of staged assets and return the exit status."""
    assets, wrong = check_assets(folder)
    if as_json:
        found = {"folder": str(folder), "assets": len(assets.assets), "damaged": wrong}
        click.echo(msgspec.json.encode(found))
        return 1 if wrong else 0
    out = console(stderr=False)
    for name, what in wrong.items():
        out.print(f"{name}: {what}", soft_wrap=True)
    if wrong:
        repair = command("stage", "TASKS", "--to", folder)
        out.print(f"{len(wrong):,} damaged; repair with: {repair}", soft_wrap=True)
    else:
        size = byte_size(sum(asset.size for asset in assets.assets))
        number = count(len(assets.assets), "asset")
        out.print(f"{number}, {size}: all match their digests", soft_wrap=True)
    return 1 if wrong else 0


def _print_outcome(out: Console, folder: Path, plan: Plan, outcome: Outcome) -> None:
    print_table(out, _table(outcome.assets.assets))
    lines = [
        f"not staged: {left.what}: {left.reason} ({_tasks(tuple(left.tasks))})"
        for left in plan.unstaged.values()
    ]
    if late := [planned for planned in plan.requests.values() if _reveals_tests(planned)]:
        names = ", ".join(planned.request.describe() for planned in late[:SHOWN_ASSETS])
        more = f" and {len(late) - SHOWN_ASSETS:,} more" if len(late) > SHOWN_ASSETS else ""
        lines.append(f"only for tests or solutions, but agents can read: {names}{more}")
    for failure in outcome.failures:
        what = failure.request.describe()
        lines.append(f"failed: {what}: {failure.reason} ({_tasks(failure.tasks)})")
    if outcome.failures:
        lines.append("use local copies: --from git:URL=PATH, url:URL=FILE, wheels=FOLDER")
    if outcome.stopped:
        lines.append(f"stopped: {outcome.stopped}; staged assets are kept")
    staged = count(len(outcome.assets.assets), "asset")
    size = byte_size(sum(asset.size for asset in outcome.assets.assets))
    idle = "nothing to do" if outcome.complete else "nothing staged now"
    new = f"{len(outcome.staged):,} staged now" if outcome.staged else idle
    lines.append(f"{staged}, {size} · {new} · {folder / 'assets.toml'}")
    for line in lines:
        out.print(plain(line), soft_wrap=True)


def _reveals_tests(planned: PlannedRequest) -> bool:
    """Whether it may show an agent what the tests check. Packages do not."""
    return planned.exposed_early and bool(planned.tasks) and planned.request.kind in ("git", "url")


def _table(assets: Sequence[Asset]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("asset", overflow="fold", min_width=MIN_WIDTH)
    table.add_column("pin", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("mounted at", overflow="fold", min_width=MIN_WIDTH)
    for asset in assets:
        first, *others = asset.pin.removeprefix("sha256:").split() or [""]
        pin = f"{first[:12]} +{len(others)}" if others else first[:20]
        where = asset.mount or f"{ASSETS_MOUNT}/{asset.path}"
        table.add_row(plain(f"{asset.kind} {asset.source}"), pin, byte_size(asset.size), where)
    return table


def _tasks(names: Sequence[str]) -> str:
    if not names:
        return NO_TASK
    more = f" and {len(names) - SHOWN_TASKS:,} more" if len(names) > SHOWN_TASKS else ""
    return f"{', '.join(names[:SHOWN_TASKS])}{more}"


def _summary(folder: Path, plan: Plan, outcome: Outcome) -> dict[str, Any]:
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
