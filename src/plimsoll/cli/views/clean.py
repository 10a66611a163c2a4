"""What `plimsoll clean` prints while it removes: a line a thing, then the total."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from plimsoll.cli.views.evaluation import console, plain
from plimsoll.cli.views.inventory import (
    as_object,
    counted,
    shown_id,
    shown_owner,
)
from plimsoll.config.file import Config
from plimsoll.core.errors import UsageError
from plimsoll.core.ids import Owner
from plimsoll.runs.cleanup import (
    Choice,
    Stock,
    choose_all,
    choose_expired,
    choose_run,
    of_live_owners,
    of_others,
    open_stock,
)
from plimsoll.runs.controller_process import leftovers
from plimsoll.runs.directory import RunDirectory
from plimsoll.sandboxes.host.owners import host_name, is_here
from plimsoll.sandboxes.reaper import Resource
from plimsoll.sandboxes.trees.removal import remove_folder

__all__ = ["CleanRequest", "clean"]


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """What a person asked for: a run, what is expired, or else all."""

    run: str | None
    expired: bool
    dry_run: bool
    anyway: bool
    """Also what belongs to live owners."""
    as_json: bool
    directory: RunDirectory | None = None
    """The run's, where it is to be found here."""
    is_known: bool = False
    """Its directory is here, or an evaluation's: it need not have anything."""

    @property
    def own_processes(self) -> int | None:
        """How many processes of this host may live that are its own; None where it cannot be told.

        A run was ended just now, and an evaluation is one process.
        """
        if self.directory is not None:
            return 0
        return 1 if self.is_known else None


class RemovalReport:
    """What became of each thing, said as it happens unless it is to be JSON."""

    def __init__(self, dry_run: bool, as_json: bool) -> None:
        self._out = console(stderr=as_json)
        self._as_json = as_json
        self.verb = "would remove" if dry_run else "removed"
        self.removed: list[tuple[str, Resource]] = []
        self.failed: list[tuple[str, Resource, str]] = []
        self.files: list[str] = []

    def note(self, backend: str, item: Resource, why: str) -> None:
        """Something was removed, or could not be."""
        if why:
            self.failed.append((backend, item, why))
            self.say(f"not removed   {_described(backend, item)}: {why}")
        else:
            self.removed.append((backend, item))
            self.say(f"{self.verb:<12}  {_described(backend, item)}")

    def note_file(self, path: Path) -> None:
        """A temporary file was removed."""
        self.files.append(str(path))
        self.say(f"{self.verb:<12}  {path}")

    def say(self, line: str) -> None:
        if not self._as_json:
            self._out.print(plain(line), soft_wrap=True)


async def clean(wanted: CleanRequest, backend: str, config: Config) -> int:
    """Remove what is wanted, and return the exit status."""
    account = RemovalReport(wanted.dry_run, wanted.as_json)
    async with open_stock(backend, config) as stock:
        choice = _choose(wanted, stock)
        # What is expired goes by itself, whoever its owner is.
        living = {} if wanted.expired else of_live_owners(choice, stock.now)
        if wanted.dry_run:
            for name, item in choice.items:
                account.note(name, item, "")
        elif not living or _may(wanted, living):
            await choice.carry_out(account.note)
        else:
            click.echo("nothing was removed", err=True)
            return 0
        _clean_directory(wanted, account)
    if wanted.as_json:
        click.echo(msgspec.json.encode(_answer(wanted, stock, choice, account)))
    else:
        for line in (*_remarks(stock, choice, living, wanted), _total(stock, choice, account)):
            account.say(line)
    return 1 if account.failed or _missed(wanted, stock, config) else 0


def _missed(wanted: CleanRequest, stock: Stock, config: Config) -> bool:
    """Whether a backend could not be asked that has, or may have, what was to be removed.

    That there is no Docker where nobody named an engine is nothing to complain of.
    """
    if wanted.directory is not None:
        return config.run.backend in stock.unreached
    named = config.docker.host or config.docker.context
    named = named or os.environ.get("DOCKER_HOST") or os.environ.get("DOCKER_CONTEXT")
    return any(name != "docker" or named for name in stock.unreached)


def _clean_directory(wanted: CleanRequest, account: RemovalReport) -> None:
    """Remove what the run left in files and nobody will read."""
    for path in [] if wanted.directory is None else leftovers(wanted.directory):
        if not wanted.dry_run:
            remove_folder(path)
        account.note_file(path)


def _choose(wanted: CleanRequest, stock: Stock) -> Choice:
    if wanted.run is not None:
        return choose_run(stock, wanted.run, is_known=wanted.is_known)
    return choose_expired(stock) if wanted.expired else choose_all(stock)


def _may(wanted: CleanRequest, living: Mapping[Owner, Sequence[Resource]]) -> bool:
    """Whether what live owners have is to go."""
    if not wanted.anyway:
        return _confirmed(wanted, living)
    own = wanted.own_processes
    if own is not None and (others := of_others(living, own)):
        raise UsageError(
            f"not only this run is called {wanted.run}: its sandboxes are not told from those of "
            f"{_names(others)}. Wait until they end, or end them"
        )
    return True


def _confirmed(wanted: CleanRequest, living: Mapping[Owner, Sequence[Resource]]) -> bool:
    """Whether what live owners have is to go: a run is refused, for --all it is asked."""
    if wanted.run is not None:
        raise UsageError(
            f"run {wanted.run} is alive: {_names(living)}; its trials would become void. "
            "Stop it, or remove it all the same with --force"
        )
    items = [item for of_one in living.values() for item in of_one]
    runs = ", ".join(sorted({item.labels.run for item in items}))
    said = f"live runs ({runs}) would lose {counted(item.kind for item in items)}"
    if not sys.stdin.isatty():
        raise UsageError(f"{said}; --yes removes them all the same, --expired leaves them alone")
    return click.confirm(f"{plain(said)}, and their trials become void. Go on?", err=True)


def _names(owners: Iterable[Owner]) -> str:
    """Owners that live, or may live."""
    return ", ".join(
        f"pid {owner.pid} on {host_name(owner)}"
        if is_here(owner)
        else f"pid {owner.pid} on {owner.host}, which cannot be asked from here"
        for owner in owners
    )


def _described(backend: str, item: Resource) -> str:
    labels = item.labels
    whose = f"run {labels.run}, {labels.ticket}; {shown_owner(labels.owner)}"
    if item.shared or not labels.run:
        whose = "shared by runs" if item.shared else "of no run"
    return f"{backend} {item.kind} {shown_id(item)}  ({whose})"


def _remarks(
    stock: Stock, choice: Choice, living: Iterable[Owner], wanted: CleanRequest
) -> Iterator[str]:
    """What stays and why, and who could not be asked."""
    for left in choice.left:
        yield f"left          {_described(left.backend, left.item)}: {left.why}"
    if choice.shared:
        yield f"left          {choice.shared:,} that other runs use too; --all removes them"
    if wanted.dry_run and living:
        yield f"needs {'--yes' if wanted.run is None else '--force'}: alive are {_names(living)}"
    for name, why in stock.unreached.items():
        yield f"{name} was not asked: {why}"


def _total(stock: Stock, choice: Choice, account: RemovalReport) -> str:
    where = " and ".join(stock.backends)
    things = [counted(item.kind for _, item in account.removed)] if account.removed else []
    if count := len(account.files):
        things.append(f"{count:,} temporary {'file' if count == 1 else 'files'}")
    if things:
        parts = [f"{account.verb} {', '.join(things)}"]
    else:
        parts = ["nothing removed" if account.failed else f"nothing to remove on {where}"]
    if account.failed:
        parts.append(f"{len(account.failed):,} could not be removed")
    if choice.left:
        parts.append(f"{len(choice.left):,} in use and left")
    return " · ".join(parts)


def _answer(
    wanted: CleanRequest, stock: Stock, choice: Choice, account: RemovalReport
) -> dict[str, Any]:
    def objects(found: Iterable[tuple[str, Resource, str]]) -> list[dict[str, Any]]:
        return [as_object(name, item, stock.now) | {"why": why} for name, item, why in found]

    return {
        "dry_run": wanted.dry_run,
        "removed": [as_object(name, item, stock.now) for name, item in account.removed],
        "files": account.files,
        "failed": objects(account.failed),
        "left": objects((left.backend, left.item, left.why) for left in choice.left),
        "unreached": stock.unreached,
    }
