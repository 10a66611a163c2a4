"""Staged assets as sandboxes use them: covered fetches, mounts and environment.

Invariant: `env` and `path_prefix` refer only to staged files. pip, uv and npm are offline only
for tasks whose fetches with that tool are all staged; other tasks keep their network.
"""

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from plimsoll.core.errors import UsageError
from plimsoll.tasks.assets.asset import (
    ASSETS_MOUNT,
    Asset,
    AssetMount,
    Request,
    UnsupportedFetch,
    requests_of,
)
from plimsoll.tasks.assets.manifest_file import read_manifest
from plimsoll.tasks.fetches.fetch import Fetch, Kind

__all__ = ["StagedAssets", "load_assets"]

SHIMS = f"{ASSETS_MOUNT}/shims"


@dataclass(frozen=True, slots=True)
class StagedAssets:
    """An assets folder: its assets and the requests that they satisfy."""

    folder: Path
    assets: tuple[Asset, ...]
    requests: tuple[Request, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read assets.toml; an `AssetError` describes its problems."""
        assets, requests = read_manifest(folder)
        return cls(folder.absolute(), assets, requests)

    @property
    def key(self) -> str:
        """Hash of the staged content; part of the identity of images and validations."""
        parts = sorted(f"{asset.path} {asset.digest}" for asset in self.assets)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def missing(self) -> list[str]:
        """Return the paths of missing assets. `check_assets` verifies the contents too."""
        paths = ("shims", *(asset.path for asset in self.assets))
        return [path for path in paths if not (self.folder / path).exists()]

    def covers(self, fetch: Fetch) -> bool:
        """Whether the fetch works offline in a sandbox with these assets."""
        try:
            return all(self._satisfies(request) for request in requests_of(fetch))
        except UnsupportedFetch:
            return False

    def mounts(self, fetches: Iterable[Fetch] | None = None) -> tuple[AssetMount, ...]:
        """Return the mounts: the folder itself, then checkouts at the paths that tasks clone to.

        With the fetches of a task, return only the checkouts that this task clones.
        """
        own = None if fetches is None else set(self._paths(fetches))
        mounts = [AssetMount(self.folder, ASSETS_MOUNT)]
        for asset in self.assets:
            if asset.mount and (own is None or (asset.mount, asset.path) in own):
                mounts.append(AssetMount(self.folder / asset.path, asset.mount))
        return tuple(mounts)

    def env(self, fetches: Sequence[Fetch] | None = None) -> dict[str, str]:
        """Return the variables that make git, pip, uv and npm use the assets, except PATH.

        With the fetches of a task, return the variables for this task.
        """
        found: dict[str, str] = {}
        if self._has(Kind.GIT):
            # The system file also applies to the process that serves a clone, which git
            # starts without the other variables; these work if the system file is disabled.
            found["GIT_CONFIG_SYSTEM"] = f"{SHIMS}/gitconfig-system"
            found["GIT_CONFIG_COUNT"] = "1"
            found["GIT_CONFIG_KEY_0"] = "include.path"
            found["GIT_CONFIG_VALUE_0"] = f"{SHIMS}/gitconfig"
        if self._has(Kind.WHEELS):
            found["PIP_FIND_LINKS"] = f"{ASSETS_MOUNT}/wheels"
            found["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
            found["UV_FIND_LINKS"] = f"{ASSETS_MOUNT}/wheels"
            # The uv cache and a virtual environment may be on different file systems.
            found["UV_LINK_MODE"] = "copy"
            if self._covers_all(Kind.WHEELS, fetches):
                found |= dict.fromkeys(("PIP_NO_INDEX", "UV_OFFLINE", "UV_NO_INDEX"), "1")
        for asset in self.assets:
            if asset.kind is Kind.NPM:
                found["PLIMSOLL_NPM_CACHE"] = f"{ASSETS_MOUNT}/{asset.path}"
                found |= {f"npm_config_{key}": "false" for key in ("audit", "fund")}
                found["npm_config_update_notifier"] = "false"
                if self._covers_all(Kind.NPM, fetches):
                    found["npm_config_offline"] = "true"
        return found

    @property
    def path_prefix(self) -> str:
        """The folders to prepend to PATH in a sandbox."""
        return f"{SHIMS}:{ASSETS_MOUNT}/bin"

    def _paths(self, fetches: Iterable[Fetch]) -> Iterator[tuple[str, str]]:
        """Yield pairs of a fetch's destination and the path of an asset that satisfies it."""
        for fetch in fetches:
            with suppress(UnsupportedFetch):
                keys = {request.key for request in requests_of(fetch)}
                target = (fetch.target or "").rstrip("/")
                for request in self.requests:
                    if request.key in keys:
                        yield from ((target, path) for path in request.assets)

    def _covers_all(self, kind: Kind, fetches: Sequence[Fetch] | None) -> bool:
        """Whether a task has fetches of this kind and all of them are staged."""
        if fetches is None:
            return True
        own = [fetch for fetch in fetches if fetch.kind is kind]
        return bool(own) and all(self.covers(fetch) for fetch in own)

    def _has(self, kind: Kind) -> bool:
        return any(asset.kind is kind for asset in self.assets)

    def _satisfies(self, new: Request) -> bool:
        paths = {asset.path for asset in self.assets}
        return any(
            request.kind is new.kind
            and request.revision == new.revision
            and set(new.what) <= set(request.what)
            and request.assets
            and paths.issuperset(request.assets)
            for request in self.requests
        )

    def with_added(self, assets: Iterable[Asset], requests: Iterable[Request]) -> Self:
        """Add assets and requests; new ones replace old ones of the same path or key."""
        by_path = {asset.path: asset for asset in (*self.assets, *assets)}
        by_key = {request.key: request for request in (*self.requests, *requests)}
        return replace(self, assets=tuple(by_path.values()), requests=tuple(by_key.values()))

    def without(self, path: str) -> Self:
        """Remove an asset and the requests that depend on it."""
        return replace(
            self,
            assets=tuple(asset for asset in self.assets if asset.path != path),
            requests=tuple(request for request in self.requests if path not in request.assets),
        )


def load_assets(folder: Path | None) -> StagedAssets | None:
    """The complete assets of a folder; None without a folder. Raises `UsageError` for gaps."""
    if folder is None:
        return None
    assets = StagedAssets.load(folder)
    if missing := assets.missing():
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise UsageError(
            f"{folder / missing[0]}: missing{more}, and assets.toml names it; "
            f"repair it with `plimsoll stage TASKS --to {shlex.quote(str(folder))}`"
        )
    return assets
