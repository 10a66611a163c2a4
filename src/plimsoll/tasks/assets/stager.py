"""Stager: fetches the missing assets of a plan, one by one, and verifies an assets folder.

Invariants:

* assets.toml lists only complete assets.
* If the process is killed, all assets staged so far remain usable.
* An intact asset is never fetched again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Asset, Request, uv_requirement
from plimsoll.tasks.assets.commands import DiskFull, is_disk_full
from plimsoll.tasks.assets.derived_files import damaged_derived_files, write_derived_files
from plimsoll.tasks.assets.git import Mirror, stage_checkout, stage_mirror
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.manifest_file import MANIFEST, write_manifest
from plimsoll.tasks.assets.packages import host_python, stage_npm, stage_uv, stage_wheels
from plimsoll.tasks.assets.plan import Plan
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.assets.store import AssetStore, damage
from plimsoll.tasks.assets.urls import stage_url
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["Failure", "Outcome", "Stager", "check_assets"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that could not be staged, with the reason and its tasks."""

    request: Request
    reason: str
    tasks: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """The result of a run of the stager."""

    assets: StagedAssets
    staged: list[str] = field(default_factory=list[str])
    reused: int = 0
    failures: list[Failure] = field(default_factory=list[Failure])
    stopped: str | None = None
    """Why it stopped early: the storage is full."""

    @property
    def complete(self) -> bool:
        return not self.failures and self.stopped is None


class Stager:
    """Stages assets to a store that this process has locked."""

    def __init__(
        self, store: AssetStore, sources: LocalSources, report: Callable[[str], None]
    ) -> None:
        self._store = store
        self._sources = sources
        self._report = report
        self._assets = _load(store)
        self._repairs: set[tuple[object, ...]] = set()
        """Requests with a damaged checkout and an intact mirror."""

    def stage(self, plan: Plan) -> Outcome:
        """Stage missing and damaged assets; a fetch that fails is a `Failure` of the outcome."""
        self._outcome = Outcome(self._assets)
        self._plan = plan
        try:
            self._drop_damaged()
            pending = [w.request for w in plan.requests.values() if not self._is_done(w.request)]
            self._outcome.reused = len(plan.requests) - len(pending)
            self._stage_all(pending)
            self._release_shared_mounts()
            self._commit()
        except DiskFull:
            self._outcome.stopped = f"no space left in {self._store.folder}"
        except OSError as error:
            if not is_disk_full(error):
                where = error.filename2 or error.filename or self._store.folder
                raise AssetError(f"{where}: cannot be written: {error.strerror}") from error
            self._outcome.stopped = f"no space left in {self._store.folder}"
        finally:
            self._outcome.assets = self._assets
        return self._outcome

    def _drop_damaged(self) -> None:
        """Remove damaged assets and request them again."""
        requests = self._assets.requests
        for asset in self._assets.assets:
            problem = damage(self._store.folder, asset)
            if problem is None:
                continue
            self._report(f"{asset.path}: {problem}; staging it again")
            for request in requests:
                if asset.path in request.assets:
                    self._plan.add(replace(request, assets=()))
                    if asset.mount is not None:
                        self._plan.clones.setdefault(asset.mount, {request.key})
                        self._plan.read_only.setdefault(asset.mount, True)
            self._assets = self._assets.without(asset.path)
        intact = {a.path for a in self._assets.assets if a.path.startswith("git/")}
        satisfied = {request.key for request in self._assets.requests}
        self._repairs = {
            r.key for r in requests if r.key not in satisfied and intact & set(r.assets)
        }

    def _is_done(self, request: Request) -> bool:
        return any(one.key == request.key for one in self._assets.requests)

    def _stage_all(self, pending: list[Request]) -> None:
        git = [request for request in pending if request.kind is Kind.GIT]
        for source in dict.fromkeys(request.what[0] for request in git):
            same = [request for request in git if request.what[0] == source]
            self._try(*(request for request in same if request.key in self._repairs))
            self._try(*(request for request in same if request.key not in self._repairs))
        for request in pending:
            if request.kind in (Kind.URL, Kind.UV_TOOL, Kind.WHEELS):
                self._try(request)
        self._try(*(request for request in pending if request.kind is Kind.NPM))

    def _try(self, *requests: Request) -> None:
        if not requests:
            return
        self._report(f"staging {'; '.join(request.describe() for request in requests)}")
        try:
            match requests[0].kind:
                case Kind.GIT:
                    self._stage_git(requests)
                case Kind.NPM:
                    self._stage_npm(requests)
                case _:
                    self._satisfy(requests[0], self._stage_one(requests[0]))
        except DiskFull:
            raise
        except AssetError as error:
            for request in requests:
                self._fail(request, str(error))

    def _stage_one(self, request: Request) -> list[Asset]:
        wheels = self._sources.wheels
        if request.kind is Kind.URL:
            return [
                stage_url(self._store, request.what[0], self._sources.urls.get(request.what[0]))
            ]
        if request.kind is Kind.UV_TOOL:
            return stage_uv(self._store, uv_requirement(request.what[0]), wheels)
        python = request.python or host_python()
        return stage_wheels(self._store, request.what, python, wheels)

    def _stage_git(self, requests: tuple[Request, ...]) -> None:
        source = requests[0].what[0]
        old = next((a for a in self._assets.assets
                    if a.source == source and a.path.startswith("git/")), None)  # fmt: skip
        origin = str(self._sources.git.get(source, source))
        if old is not None and requests[0].key in self._repairs:
            # The mirror has the pinned commit, even if the origin has changed.
            origin = str(self._store.folder / old.path)
        revisions = [request.revision for request in requests]
        mirror = stage_mirror(self._store, source, revisions, origin=origin, old=old)
        if old is not None:
            self._replace(old, mirror.asset)
        for request in requests:
            if request.revision in mirror.failures:
                self._fail(request, mirror.failures[request.revision])
            else:
                self._satisfy(request, [mirror.asset, *self._checkouts(mirror, request)])
        if old is not None and old.path != mirror.asset.path:
            self._store.remove(old.path)

    def _checkouts(self, mirror: Mirror, request: Request) -> Iterable[Asset]:
        # An asset has one mount in assets.toml; other paths are cloned from the mirror.
        for target in self._plan.mounts(request)[:1]:
            yield stage_checkout(self._store, mirror, request.revision, target)

    def _stage_npm(self, requests: tuple[Request, ...]) -> None:
        """Stage npm packages. All packages share one cache, which is rebuilt with the new ones."""
        old = next((asset for asset in self._assets.assets if asset.kind is Kind.NPM), None)
        before = old.pin.split() if old else []
        packages = sorted({*before, *(word for request in requests for word in request.what)})
        old_cache = self._store.folder / old.path if old else None
        asset = stage_npm(self._store, packages, old=old_cache, local=self._sources.npm)
        if old is not None:
            self._replace(old, asset)
        for request in requests:
            self._satisfy(request, [asset])
        if old is not None and old.path != asset.path:
            self._store.remove(old.path)

    def _replace(self, old: Asset, new: Asset) -> None:
        """Replace an asset in all requests that it satisfies."""
        moved = [
            replace(r, assets=tuple(new.path if p == old.path else p for p in r.assets))
            for r in self._assets.requests
        ]
        self._assets = self._assets.without(old.path).with_added([new], moved)

    def _satisfy(self, request: Request, assets: list[Asset]) -> None:
        paths = tuple(asset.path for asset in assets)
        self._assets = self._assets.with_added(assets, [replace(request, assets=paths)])
        self._outcome.staged += [path for path in paths if path not in self._outcome.staged]
        self._commit()

    def _fail(self, request: Request, reason: str) -> None:
        self._report(f"failed: {request.describe()}: {reason}")
        planned = self._plan.requests[request.key]
        if not planned.optional:
            self._outcome.failures.append(Failure(request, reason, tuple(planned.tasks)))

    def _release_shared_mounts(self) -> None:
        """Remove mounts at paths that tasks clone different repositories to."""
        answered = {request.key: request.assets for request in self._assets.requests}
        for asset in self._assets.assets:
            keys = self._plan.clones.get(asset.mount or "", set())
            alone = all(asset.path in answered.get(key, ()) for key in keys)
            if asset.mount and not (alone and self._plan.read_only.get(asset.mount, True)):
                self._assets = self._assets.with_added([replace(asset, mount=None)], [])

    def _commit(self) -> None:
        write_derived_files(self._assets)
        write_manifest(self._store.folder, self._assets.assets, self._assets.requests)


def _load(store: AssetStore) -> StagedAssets:
    if not (store.folder / MANIFEST).exists():
        return StagedAssets(store.folder, (), ())
    return StagedAssets.load(store.folder)


def check_assets(folder: Path) -> tuple[StagedAssets, dict[str, str]]:
    """Verify an assets folder; return the assets and the problems of damaged paths."""
    assets = StagedAssets.load(folder)
    problem = {asset.path: found for asset in assets.assets if (found := damage(folder, asset))}
    return assets, problem | damaged_derived_files(assets)
