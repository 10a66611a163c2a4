"""Git repositories: a bare mirror that holds the wanted commits, and checkouts of them.

Invariant: a mirror whose commits are all pinned holds these and what came before them, never
what came after: an agent cannot read a later fix out of it. The past is whole, so that `git
log` and versions made from tags are as in a clone from the network.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Asset
from plimsoll.tasks.assets.commands import DiskFull, run
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.fetches.fetch import Kind

__all__ = ["STAGED_MARK", "Mirror", "stage_checkout", "stage_mirror"]

ALL = "refs/plimsoll-all"
STAGED_MARK = "plimsoll-staged"
"""A file in a checkout's .git by which the git shim knows it."""
SHA = re.compile(r"[0-9a-f]{7,40}|[0-9a-f]{64}")
QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
ANY_OWNER = Path(__file__).with_name("any-owner.gitconfig")
"""Lets git read a repository of another user that was given by hand."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A staged mirror, the commit of each revision in it, and why others are not."""

    asset: Asset
    branch: str
    commits: dict[str | None, str]
    failures: dict[str | None, str]


@dataclass(slots=True)
class _Remote:
    """What a repository says of itself: its refs (tags peeled) and its main branch."""

    origin: str
    refs: dict[str, str] = field(default_factory=dict[str, str])
    branch: str = "main"


def stage_mirror(
    place: AssetStore,
    source: str,
    revisions: Iterable[str | None],
    *,
    origin: str,
    old: Asset | None = None,
) -> Mirror:
    """Mirror `source` out of `origin`, a URL, a repository or a bundle, with what `old` holds."""
    wanted = sorted(set(revisions), key=str)
    with place.partial() as made:
        repo = made / "mirror.git"
        _git(made, "init", "--quiet", "--bare", "--template=", str(repo))
        if old is not None:
            before = str(place.folder / old.path)
            _git(repo, "fetch", "--quiet", "--update-shallow", before, "+refs/*:refs/*")
        remote = _ask(repo, origin)
        commits: dict[str | None, str] = {}
        failures: dict[str | None, str] = {}
        for revision in wanted:
            try:
                commits[revision] = _take(repo, remote, revision)
            except DiskFull:
                raise
            except AssetError as error:
                failures[revision] = str(error)
        if not commits:
            raise AssetError("; ".join(dict.fromkeys(failures.values())))
        _finish(repo, remote, commits)
        kept = _git(repo, "for-each-ref", "--format=%(objectname)", "refs/heads").split()
        path = f"git/{_name(source)}-{_hash(source, *sorted(kept))}.git"
        found = place.put(repo, path)
    pin = " ".join(dict.fromkeys((*(old.pin.split() if old else ()), *commits.values())))
    how = "clones and fetches of its URL are answered from it (git insteadOf)"
    asset = Asset(Kind.GIT, source, pin, found.digest, found.size, path, None, how)
    return Mirror(asset, remote.branch, commits, failures)


def stage_checkout(place: AssetStore, mirror: Mirror, revision: str | None, target: str) -> Asset:
    """Check a mirror's commit out, to be mounted where a task clones to."""
    commit, source = mirror.commits[revision], mirror.asset.source
    path = f"checkouts/{_name(source)}-{commit}"
    with place.partial() as made:
        tree = made / "tree"
        _git(made, "init", "--quiet", "--template=", "-b", mirror.branch, str(tree))
        bare = f"file://{place.folder / mirror.asset.path}"
        _git(tree, "fetch", "--quiet", "--depth=1", bare, commit)
        detach = revision is not None and SHA.fullmatch(revision)
        where = ["--detach"] if detach else ["-B", mirror.branch]
        _git(tree, "checkout", "--quiet", *where, "FETCH_HEAD")
        _git(tree, "remote", "add", "origin", source)
        (tree / ".git/FETCH_HEAD").unlink(missing_ok=True)
        (tree / ".git" / STAGED_MARK).write_text(f"{source} {commit}\n")
        found = place.put(tree, path)
    how = "mounted where tasks clone it to; the clone finds it there"
    return Asset(Kind.GIT, source, commit, found.digest, found.size, path, target, how)


def _git(cwd: Path, *args: str, stdin: str = "") -> str:
    slow = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60", "-c", "gc.auto=0")
    owner = os.environ.get("GIT_CONFIG_SYSTEM", str(ANY_OWNER))
    env = {**QUIET, "GIT_CONFIG_SYSTEM": owner}
    return run(["git", *slow, *args], cwd=cwd, env=env, stdin=stdin)


def _ask(repo: Path, origin: str) -> _Remote:
    remote = _Remote(origin)
    head = ""
    for line in _git(repo, "ls-remote", "--symref", "--", origin).splitlines():
        left, _, name = line.partition("\t")
        if left.startswith("ref: refs/heads/") and name == "HEAD":
            remote.branch = left.removeprefix("ref: refs/heads/")
            continue
        if name == "HEAD":
            head = left
        remote.refs[name.removesuffix("^{}")] = left
    # A bundle may be of branches alone; one that is called main or master comes first then.
    heads = [n for n, at in remote.refs.items() if n.startswith("refs/heads/") and head in ("", at)]
    if heads and f"refs/heads/{remote.branch}" not in heads:
        first = "refs/heads/master" if "refs/heads/master" in heads else heads[0]
        remote.branch = first.removeprefix("refs/heads/")
    return remote


def _take(repo: Path, remote: _Remote, revision: str | None) -> str:
    """Fetch one revision, under a ref that clones bring along; the commit that it is."""
    if revision is None:
        _fetch(repo, remote, ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"])
        branch = f"refs/heads/{remote.branch}"
        if branch not in remote.refs:
            _fetch(repo, remote, [f"+HEAD:{branch}"])
        return _commit(repo, branch)
    for ref in (f"refs/tags/{revision}", f"refs/heads/{revision}", revision):
        if ref in remote.refs and ref.startswith("refs/"):
            _fetch(repo, remote, [f"+{ref}:{ref}"])
            return _commit(repo, ref)
    if not SHA.fullmatch(revision):
        raise AssetError(f"{remote.origin} has no branch or tag {revision}")
    return _take_commit(repo, remote, revision)


def _take_commit(repo: Path, remote: _Remote, sha: str) -> str:
    held = f"refs/heads/plimsoll/{sha[:12]}"
    if len(sha) >= 40:
        try:
            _fetch(repo, remote, [f"+{sha}:{held}"])
            return _commit(repo, held)
        except DiskFull:
            raise
        except AssetError:
            # Not every server gives out a commit by its name; all of it holds it as well.
            pass
    _fetch(repo, remote, [f"+refs/*:{ALL}/*"])
    if "HEAD" in remote.refs:
        _fetch(repo, remote, [f"+HEAD:{ALL}/HEAD"])
    try:
        commit = _commit(repo, sha)
    except AssetError:
        raise AssetError(f"{remote.origin} has no commit {sha}") from None
    _git(repo, "update-ref", held, commit)
    return commit


def _fetch(repo: Path, remote: _Remote, refs: Sequence[str]) -> None:
    _git(repo, "fetch", "--quiet", "--no-tags", "--update-shallow", "--no-write-fetch-head",
         "--stdin", "--", remote.origin, stdin="".join(f"{ref}\n" for ref in refs))  # fmt: skip


def _commit(repo: Path, name: str) -> str:
    return _git(repo, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()


def _finish(repo: Path, remote: _Remote, commits: dict[str | None, str]) -> None:
    """A main branch for clones to check out, the tags of the past, and nothing besides."""
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
    _take_past_tags(repo, remote)
    # A task may fetch a commit by its name.
    _git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    _git(repo, "config", "gc.auto", "0")
    _git(repo, "pack-refs", "--all")


def _take_past_tags(repo: Path, remote: _Remote) -> None:
    tags = {name: at for name, at in remote.refs.items() if name.startswith("refs/tags/")}
    listing = _git(
        repo, "cat-file", "--batch-check", stdin="".join(f"{x}\n" for x in tags.values())
    )
    here = {line.split()[0] for line in listing.splitlines() if " missing" not in line}
    if past := [f"+{name}:{name}" for name, at in tags.items() if at in here]:
        _fetch(repo, remote, past)


def _name(source: str) -> str:
    last = source.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "-", last).lstrip(".-") or "repository"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
