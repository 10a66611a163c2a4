"""The output of `plimsoll clean`: one line for each removed resource, then the total."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from plimsoll.cli.terminal.console import console
from plimsoll.cli.views.inventory import as_object, counted, shown_id, shown_owner
from plimsoll.cli.views.text import count, plain
from plimsoll.config.file import Config
from plimsoll.core.errors import UsageError
from plimsoll.core.ids import Owner
from plimsoll.runs.cleanup import (
    Inventories,
    RemovalPlan,
    choose_all,
    choose_expired,
    choose_run,
    of_live_owners,
    of_others,
    open_inventories,
)
from plimsoll.runs.controller_process import leftovers
from plimsoll.runs.files.directory import RunDirectory
from plimsoll.sandboxes.host.owners import host_name, is_here
from plimsoll.sandboxes.reaper import Resource
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["CleanRequest", "clean"]


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """The resources to remove: those of a run, expired ones, or else all."""

    run: str | None
    expired: bool
    dry_run: bool
    anyway: bool
    """Remove resources of live owners, too."""
    as_json: bool
    directory: RunDirectory | None = None
    """The directory of the run, if it is on this host."""

    @property
    def is_known(self) -> bool:
        """Whether its directory was found: a known run need not have any resources."""
        return self.directory is not None


class RemovalReport:
    """The results of removals, printed at once unless the output is JSON."""

    def __init__(self, dry_run: bool, as_json: bool) -> None:
        self._out = console(stderr=False)
        self._as_json = as_json
        self.verb = "would remove" if dry_run else "removed"
        self.removed: list[tuple[str, Resource]] = []
        self.failed: list[tuple[str, Resource, str]] = []
        self.files: list[str] = []

    def note(self, backend: str, item: Resource, why: str) -> None:
        """Record that a resource was removed, or why not."""
        if why:
            self.failed.append((backend, item, why))
            self.say(f"not removed   {_described(backend, item)}: {why}")
        else:
            self.removed.append((backend, item))
            self.say(f"{self.verb:<12}  {_described(backend, item)}")

    def note_file(self, path: Path) -> None:
        """Record the removal of a temporary file."""
        self.files.append(str(path))
        self.say(f"{self.verb:<12}  {path}")

    def say(self, line: str) -> None:
        if not self._as_json:
            self._out.print(plain(line), soft_wrap=True)


async def clean(request: CleanRequest, backend: str, config: Config) -> int:
    """Remove the requested resources and return the exit status."""
    report = RemovalReport(request.dry_run, request.as_json)
    async with open_inventories(backend, config) as inventories:
        plan = _choose(request, inventories)
        # Expired resources are removed whoever their owner is.
        living = {} if request.expired else of_live_owners(plan, inventories.now)
        if request.dry_run:
            for name, item in plan.items:
                report.note(name, item, "")
        elif not living or _is_allowed(request, living):
            await plan.carry_out(report.note)
        else:
            click.echo("nothing was removed", err=True)
            return 0
        _clean_directory(request, report)
    if request.as_json:
        click.echo(msgspec.json.encode(_as_object(request, inventories, plan, report)))
    else:
        for line in (
            *_remarks(inventories, plan, living, request),
            _total(inventories, plan, report),
        ):
            report.say(line)
    return 1 if report.failed or _was_unreachable(request, inventories, config) else 0


def _was_unreachable(request: CleanRequest, inventories: Inventories, config: Config) -> bool:
    """Whether a backend that may have requested resources could not be reached.

    A missing Docker daemon is no problem if none was configured.
    """
    if request.directory is not None:
        return config.run.backend in inventories.unreached
    named = config.docker.host or config.docker.context
    named = named or os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    return any(name != "docker" or named for name in inventories.unreached)


def _clean_directory(request: CleanRequest, report: RemovalReport) -> None:
    """Remove temporary files in the run directory."""
    for path in [] if request.directory is None else leftovers(request.directory):
        if not request.dry_run:
            remove_folder(path)
        report.note_file(path)


def _choose(request: CleanRequest, inventories: Inventories) -> RemovalPlan:
    if request.run is not None:
        return choose_run(inventories, request.run, is_known=request.is_known)
    return choose_expired(inventories) if request.expired else choose_all(inventories)


def _is_allowed(request: CleanRequest, living: Mapping[Owner, Sequence[Resource]]) -> bool:
    """Whether to remove resources of live owners."""
    if not request.anyway:
        return _confirmed(request, living)
    if request.is_known and (others := of_others(living)):
        raise UsageError(
            f"another run called {request.run} is running: the sandboxes of {_names(others)} "
            "would be removed too. Wait until it ends, or stop it"
        )
    return True


def _confirmed(request: CleanRequest, living: Mapping[Owner, Sequence[Resource]]) -> bool:
    """Ask about resources of live owners for --all; refuse a running run."""
    if request.run is not None:
        raise UsageError(
            f"run {request.run} is running: {_names(living)}; its trials would become void. "
            "Stop it first, or use --force"
        )
    items = [item for of_one in living.values() for item in of_one]
    runs = ", ".join(sorted({item.labels.run for item in items}))
    what = f"running runs ({runs}) would lose {counted(item.kind for item in items)}"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}; --yes removes them, --expired keeps them")
    return click.confirm(f"{plain(what)}, and their trials become void. Continue?", err=True)


def _names(owners: Iterable[Owner]) -> str:
    """Owners that are or may be alive."""
    return ", ".join(
        f"pid {owner.pid} on {host_name(owner)}"
        if is_here(owner)
        else f"pid {owner.pid} on {owner.host}, which is another host"
        for owner in owners
    )


def _described(backend: str, item: Resource) -> str:
    labels = item.labels
    whose = f"run {labels.run}, {labels.ticket}; {shown_owner(labels.owner)}"
    if item.shared or not labels.run:
        whose = "shared by runs" if item.shared else "of no run"
    return f"{backend} {item.kind} {shown_id(item)}  ({whose})"


def _remarks(
    inventories: Inventories, plan: RemovalPlan, living: Iterable[Owner], request: CleanRequest
) -> Iterator[str]:
    """Resources that stay, with the reasons, and unreachable backends."""
    for left in plan.left:
        yield f"left          {_described(left.backend, left.item)}: {left.why}"
    if plan.shared:
        shared = count(plan.shared, "shared resource")
        yield f"left          {shared} that other runs may use; --all removes shared resources"
    if request.dry_run and living:
        option = "--yes" if request.run is None else "--force"
        yield f"needs {option}, because the owner is running: {_names(living)}"
    for name, why in inventories.unreached.items():
        yield f"{name} was not reached: {why}"


def _total(inventories: Inventories, plan: RemovalPlan, report: RemovalReport) -> str:
    where = " and ".join(inventories.backends)
    parts_removed = [counted(item.kind for _, item in report.removed)] if report.removed else []
    if report.files:
        parts_removed.append(count(len(report.files), "temporary file"))
    if parts_removed:
        parts = [f"{report.verb} {', '.join(parts_removed)}"]
    else:
        parts = ["nothing removed" if report.failed else f"nothing to remove on {where}"]
    if report.failed:
        parts.append(f"{len(report.failed):,} could not be removed")
    if plan.left:
        parts.append(f"{len(plan.left):,} in use and left")
    return " · ".join(parts)


def _as_object(
    request: CleanRequest, inventories: Inventories, plan: RemovalPlan, report: RemovalReport
) -> dict[str, Any]:
    def objects(found: Iterable[tuple[str, Resource, str]]) -> list[dict[str, Any]]:
        return [as_object(name, item, inventories.now) | {"why": why} for name, item, why in found]

    return {
        "dry_run": request.dry_run,
        "removed": [as_object(name, item, inventories.now) for name, item in report.removed],
        "files": report.files,
        "failed": objects(report.failed),
        "left": objects((left.backend, left.item, left.why) for left in plan.left),
        "unreached": inventories.unreached,
    }
