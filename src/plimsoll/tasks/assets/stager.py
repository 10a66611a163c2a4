"""Stages what a plan wants and is not there yet, one asset after the other.

Invariants: assets.toml names only whole assets; whatever ends the process, what was staged
before stands; an asset that is there and sound is never fetched again.

Verifies an assets folder against its assets.toml, without changing anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Asset, Request
from plimsoll.tasks.assets.commands import DiskFull, is_disk_full
from plimsoll.tasks.assets.derived_files import damaged_derived_files, write_derived_files
from plimsoll.tasks.assets.git import Mirror, stage_checkout, stage_mirror
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.manifest_file import MANIFEST, write_manifest
from plimsoll.tasks.assets.packages import host_python, stage_npm, stage_uv, stage_wheels
from plimsoll.tasks.assets.plan import Plan
from plimsoll.tasks.assets.requests import uv_requirement
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.assets.store import AssetStore, damage
from plimsoll.tasks.assets.urls import stage_url
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["Failure", "Outcome", "Stager", "check_assets"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that could not be staged, why, and the tasks that make it."""

    request: Request
    reason: str
    tasks: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """What a run of the stager came to."""

    assets: StagedAssets
    staged: list[str] = field(default_factory=list[str])
    kept: int = 0
    failures: list[Failure] = field(default_factory=list[Failure])
    stopped: str | None = None
    """Why it ended before its end: the storage is full."""

    @property
    def complete(self) -> bool:
        return not self.failures and self.stopped is None


class Stager:
    """One run over an assets folder that this process holds."""

    def __init__(self, place: AssetStore, given: LocalSources, say: Callable[[str], None]) -> None:
        self._place = place
        self._given = given
        self._say = say
        self._assets = _load(place)
        self._mend: set[tuple[object, ...]] = set()
        """Of requests that lost a checkout, and whose mirror is sound."""

    def stage(self, plan: Plan) -> Outcome:
        """Stage what is missing or damaged; what cannot be had is a failure, not an error."""
        self._out = Outcome(self._assets)
        self._plan = plan
        try:
            self._drop_damaged()
            todo = [w.request for w in plan.wanted.values() if not self._is_done(w.request)]
            self._out.kept = len(plan.wanted) - len(todo)
            self._stage_all(todo)
            self._release_shared_mounts()
            self._commit()
        except DiskFull:
            self._out.stopped = f"no space left in {self._place.folder}"
        except OSError as error:
            if not is_disk_full(error):
                where = error.filename2 or error.filename or self._place.folder
                raise AssetError(f"{where}: cannot be staged to: {error.strerror}") from error
            self._out.stopped = f"no space left in {self._place.folder}"
        finally:
            self._out.assets = self._assets
        return self._out

    def _drop_damaged(self) -> None:
        """Take out what is not as it was staged, and ask for it again."""
        requests = self._assets.requests
        for asset in self._assets.assets:
            wrong = damage(self._place.folder, asset)
            if wrong is None:
                continue
            self._say(f"{asset.path}: {wrong}; staging it again")
            for request in requests:
                if asset.path in request.assets:
                    self._plan.add(replace(request, assets=()))
                    if asset.mount is not None:
                        self._plan.clones.setdefault(asset.mount, {request.key})
                        self._plan.read_only.setdefault(asset.mount, True)
            self._assets = self._assets.without(asset.path)
        sound = {a.path for a in self._assets.assets if a.path.startswith("git/")}
        kept = {request.key for request in self._assets.requests}
        self._mend = {r.key for r in requests if r.key not in kept and sound & set(r.assets)}

    def _is_done(self, wanted: Request) -> bool:
        return any(request.key == wanted.key for request in self._assets.requests)

    def _stage_all(self, todo: list[Request]) -> None:
        git = [request for request in todo if request.kind is Kind.GIT]
        for source in dict.fromkeys(request.what[0] for request in git):
            same = [request for request in git if request.what[0] == source]
            self._try(*(request for request in same if request.key in self._mend))
            self._try(*(request for request in same if request.key not in self._mend))
        for request in todo:
            if request.kind in (Kind.URL, Kind.UV_TOOL, Kind.WHEELS):
                self._try(request)
        self._try(*(request for request in todo if request.kind is Kind.NPM))

    def _try(self, *requests: Request) -> None:
        if not requests:
            return
        self._say(f"staging {'; '.join(request.describe() for request in requests)}")
        try:
            match requests[0].kind:
                case Kind.GIT:
                    self._stage_git(requests)
                case Kind.NPM:
                    self._stage_npm(requests)
                case _:
                    self._answer(requests[0], self._stage_one(requests[0]))
        except DiskFull:
            raise
        except AssetError as error:
            for request in requests:
                self._fail(request, str(error))

    def _stage_one(self, request: Request) -> list[Asset]:
        wheels = self._given.wheels
        if request.kind is Kind.URL:
            return [stage_url(self._place, request.what[0], self._given.urls.get(request.what[0]))]
        if request.kind is Kind.UV_TOOL:
            return stage_uv(self._place, uv_requirement(request.what[0]), wheels)
        python = request.python or host_python()
        return stage_wheels(self._place, request.what, python, wheels)

    def _stage_git(self, requests: tuple[Request, ...]) -> None:
        source = requests[0].what[0]
        old = next((a for a in self._assets.assets
                    if a.source == source and a.path.startswith("git/")), None)  # fmt: skip
        origin = str(self._given.git.get(source, source))
        if old is not None and requests[0].key in self._mend:
            # The mirror has it at its pin, whatever the origin has by now.
            origin = str(self._place.folder / old.path)
        revisions = [request.revision for request in requests]
        mirror = stage_mirror(self._place, source, revisions, origin=origin, old=old)
        if old is not None:
            self._replace(old, mirror.asset)
        for request in requests:
            if request.revision in mirror.failures:
                self._fail(request, mirror.failures[request.revision])
            else:
                self._answer(request, [mirror.asset, *self._checkouts(mirror, request)])
        if old is not None and old.path != mirror.asset.path:
            self._place.remove(old.path)

    def _checkouts(self, mirror: Mirror, request: Request) -> Iterable[Asset]:
        # One folder has one mount in assets.toml; a second path is cloned from the mirror.
        for target in self._plan.mounts(request)[:1]:
            yield stage_checkout(self._place, mirror, request.revision, target)

    def _stage_npm(self, requests: tuple[Request, ...]) -> None:
        """All packages share one cache, which is made anew with what is added."""
        old = next((asset for asset in self._assets.assets if asset.kind is Kind.NPM), None)
        before = old.pin.split() if old else []
        packages = sorted({*before, *(word for request in requests for word in request.what)})
        kept = self._place.folder / old.path if old else None
        asset = stage_npm(self._place, packages, old=kept, given=self._given.npm)
        if old is not None:
            self._replace(old, asset)
        for request in requests:
            self._answer(request, [asset])
        if old is not None and old.path != asset.path:
            self._place.remove(old.path)

    def _replace(self, old: Asset, new: Asset) -> None:
        """Let a newer asset answer what an older one did."""
        moved = [
            replace(r, assets=tuple(new.path if p == old.path else p for p in r.assets))
            for r in self._assets.requests
        ]
        self._assets = self._assets.without(old.path).with_([new], moved)

    def _answer(self, request: Request, assets: list[Asset]) -> None:
        paths = tuple(asset.path for asset in assets)
        self._assets = self._assets.with_(assets, [replace(request, assets=paths)])
        self._out.staged += [path for path in paths if path not in self._out.staged]
        self._commit()

    def _fail(self, request: Request, reason: str) -> None:
        self._say(f"cannot be had: {request.describe()}: {reason}")
        wanted = self._plan.wanted[request.key]
        if not wanted.optional:
            self._out.failures.append(Failure(request, reason, tuple(wanted.tasks)))

    def _release_shared_mounts(self) -> None:
        """A path that tasks clone different things to is no place for a mount."""
        answered = {request.key: request.assets for request in self._assets.requests}
        for asset in self._assets.assets:
            keys = self._plan.clones.get(asset.mount or "", set())
            alone = all(asset.path in answered.get(key, ()) for key in keys)
            if asset.mount and not (alone and self._plan.read_only.get(asset.mount, True)):
                self._assets = self._assets.with_([replace(asset, mount=None)], [])

    def _commit(self) -> None:
        write_derived_files(self._assets)
        write_manifest(self._place.folder, self._assets.assets, self._assets.requests)


def _load(place: AssetStore) -> StagedAssets:
    if not (place.folder / MANIFEST).exists():
        return StagedAssets(place.folder, (), ())
    return StagedAssets.load(place.folder)


def check_assets(folder: Path) -> tuple[StagedAssets, dict[str, str]]:
    """The assets, and the paths of what is missing or damaged, each with what is wrong."""
    assets = StagedAssets.load(folder)
    wrong = {asset.path: found for asset in assets.assets if (found := damage(folder, asset))}
    return assets, wrong | damaged_derived_files(assets)
