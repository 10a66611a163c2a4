"""Staged git repositories: a bare mirror with the requested commits, and checkouts of them.

Invariant: a mirror with only pinned commits has these commits and their ancestors and no later
commit, so an agent cannot read a later fix. The past history is complete: `git log` and
versions derived from tags are the same as in a clone from the network.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Asset
from plimsoll.tasks.assets.commands import DiskFull, run_command
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["STAGED_MARK", "Mirror", "stage_checkout", "stage_mirror"]

ALL = "refs/plimsoll-all"
STAGED_MARK = "plimsoll-staged"
"""A file in .git that marks a staged checkout for the git shim."""
SHA = re.compile(r"[0-9a-f]{7,40}|[0-9a-f]{64}")
QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
ANY_OWNER = Path(__file__).with_name("any-owner.gitconfig")
"""Lets git read a local repository that another user owns."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A staged mirror, the commits of its revisions, and the revisions that failed."""

    asset: Asset
    branch: str
    commits: dict[str | None, str]
    failures: dict[str | None, str]


@dataclass(slots=True)
class _Remote:
    """The refs (tags peeled) and the default branch of a repository."""

    origin: str
    refs: dict[str, str] = field(default_factory=dict[str, str])
    branch: str = "main"


def stage_mirror(
    store: AssetStore,
    source: str,
    revisions: Iterable[str | None],
    *,
    origin: str,
    old: Asset | None = None,
) -> Mirror:
    """Mirror `source` from `origin` (URL, repository or bundle) and from its `old` mirror."""
    requested = sorted(set(revisions), key=str)
    with store.partial() as folder:
        repo = folder / "mirror.git"
        _git(folder, "init", "--quiet", "--bare", "--template=", str(repo))
        if old is not None:
            before = str(store.folder / old.path)
            _git(repo, "fetch", "--quiet", "--update-shallow", before, "+refs/*:refs/*")
        remote = _list_refs(repo, origin)
        commits: dict[str | None, str] = {}
        failures: dict[str | None, str] = {}
        for revision in requested:
            try:
                commits[revision] = _fetch_revision(repo, remote, revision)
            except DiskFull:
                raise
            except AssetError as error:
                failures[revision] = str(error)
        if not commits:
            raise AssetError("; ".join(dict.fromkeys(failures.values())))
        _finish(repo, remote, commits)
        heads = _git(repo, "for-each-ref", "--format=%(objectname)", "refs/heads").split()
        path = f"git/{_name(source)}-{_hash(source, *sorted(heads))}.git"
        found = store.put(repo, path)
    pin = " ".join(dict.fromkeys((*(old.pin.split() if old else ()), *commits.values())))
    how = "clones and fetches of its URL use it (git insteadOf)"
    asset = Asset(Kind.GIT, source, pin, found.digest, found.size, path, None, how)
    return Mirror(asset, remote.branch, commits, failures)


def stage_checkout(store: AssetStore, mirror: Mirror, revision: str | None, target: str) -> Asset:
    """Check out a commit of a mirror, to be mounted at the path that a task clones to."""
    commit, source = mirror.commits[revision], mirror.asset.source
    path = f"checkouts/{_name(source)}-{commit}"
    with store.partial() as folder:
        tree = folder / "tree"
        _git(folder, "init", "--quiet", "--template=", "-b", mirror.branch, str(tree))
        bare = f"file://{store.folder / mirror.asset.path}"
        _git(tree, "fetch", "--quiet", "--depth=1", bare, commit)
        detach = revision is not None and SHA.fullmatch(revision)
        where = ["--detach"] if detach else ["-B", mirror.branch]
        _git(tree, "checkout", "--quiet", *where, "FETCH_HEAD")
        _git(tree, "remote", "add", "origin", source)
        (tree / ".git/FETCH_HEAD").unlink(missing_ok=True)
        (tree / ".git" / STAGED_MARK).write_text(f"{source} {commit}\n")
        found = store.put(tree, path)
    how = "mounted at the path that tasks clone it to"
    return Asset(Kind.GIT, source, commit, found.digest, found.size, path, target, how)


def _git(cwd: Path, *args: str, stdin: str = "") -> str:
    slow = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60", "-c", "gc.auto=0")
    owner = os.environ.get("GIT_CONFIG_SYSTEM", str(ANY_OWNER))
    env = {**QUIET, "GIT_CONFIG_SYSTEM": owner}
    return run_command(["git", *slow, *args], cwd=cwd, env=env, stdin=stdin)


def _list_refs(repo: Path, origin: str) -> _Remote:
    remote = _Remote(origin)
    head = ""
    for line in _git(repo, "ls-remote", "--symref", "--", origin).splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: refs/heads/") and name == "HEAD":
            remote.branch = value.removeprefix("ref: refs/heads/")
            continue
        if name == "HEAD":
            head = value
        remote.refs[name.removesuffix("^{}")] = value
    # A bundle may have only branches; prefer one called main or master.
    heads = [n for n, at in remote.refs.items() if n.startswith("refs/heads/") and head in ("", at)]
    if heads and f"refs/heads/{remote.branch}" not in heads:
        first = "refs/heads/master" if "refs/heads/master" in heads else heads[0]
        remote.branch = first.removeprefix("refs/heads/")
    return remote


def _fetch_revision(repo: Path, remote: _Remote, revision: str | None) -> str:
    """Fetch one revision to a ref that clones include; return its commit."""
    if revision is None:
        _fetch_refs(repo, remote, ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"])
        branch = f"refs/heads/{remote.branch}"
        if branch not in remote.refs:
            _fetch_refs(repo, remote, [f"+HEAD:{branch}"])
        return _commit(repo, branch)
    for ref in (f"refs/tags/{revision}", f"refs/heads/{revision}", revision):
        if ref in remote.refs and ref.startswith("refs/"):
            _fetch_refs(repo, remote, [f"+{ref}:{ref}"])
            return _commit(repo, ref)
    if not SHA.fullmatch(revision):
        raise AssetError(f"{remote.origin} has no branch or tag {revision}")
    return _fetch_commit(repo, remote, revision)


def _fetch_commit(repo: Path, remote: _Remote, sha: str) -> str:
    ref = f"refs/heads/plimsoll/{sha[:12]}"
    if len(sha) >= 40:
        try:
            _fetch_refs(repo, remote, [f"+{sha}:{ref}"])
            return _commit(repo, ref)
        except DiskFull:
            raise
        except AssetError:
            # Not every server serves a single commit; fetch everything instead.
            pass
    _fetch_refs(repo, remote, [f"+refs/*:{ALL}/*"])
    if "HEAD" in remote.refs:
        _fetch_refs(repo, remote, [f"+HEAD:{ALL}/HEAD"])
    try:
        commit = _commit(repo, sha)
    except AssetError:
        raise AssetError(f"{remote.origin} has no commit {sha}") from None
    _git(repo, "update-ref", ref, commit)
    return commit


def _fetch_refs(repo: Path, remote: _Remote, refs: Sequence[str]) -> None:
    _git(repo, "fetch", "--quiet", "--no-tags", "--update-shallow", "--no-write-fetch-head",
         "--stdin", "--", remote.origin, stdin="".join(f"{ref}\n" for ref in refs))  # fmt: skip


def _commit(repo: Path, name: str) -> str:
    return _git(repo, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()


def _finish(repo: Path, remote: _Remote, commits: dict[str | None, str]) -> None:
    """Set a default branch and the tags of past commits; remove everything else."""
    branch = f"refs/heads/{remote.branch}"
    heads = _git(repo, "for-each-ref", "--format=%(refname)", "refs/heads").split()
    if branch not in heads:
        newest = _git(repo, "rev-list", "--no-walk", "--date-order", *commits.values()).split()[0]
        _git(repo, "update-ref", branch, newest)
    _git(repo, "symbolic-ref", "HEAD", branch)
    if stray := _git(repo, "for-each-ref", "--format=delete %(refname)", ALL):
        _git(repo, "update-ref", "--stdin", stdin=stray)
    _git(repo, "repack", "-a", "-d", "-q")
    _git(repo, "prune", "--expire=now")
    _fetch_past_tags(repo, remote)
    # Tasks may fetch a commit by its hash.
    _git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    _git(repo, "config", "gc.auto", "0")
    _git(repo, "pack-refs", "--all")


def _fetch_past_tags(repo: Path, remote: _Remote) -> None:
    tags = {name: at for name, at in remote.refs.items() if name.startswith("refs/tags/")}
    listing = _git(
        repo, "cat-file", "--batch-check", stdin="".join(f"{x}\n" for x in tags.values())
    )
    here = {line.split()[0] for line in listing.splitlines() if " missing" not in line}
    if past := [f"+{name}:{name}" for name, at in tags.items() if at in here]:
        _fetch_refs(repo, remote, past)


def _name(source: str) -> str:
    last = source.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "-", last).lstrip(".-") or "repository"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
