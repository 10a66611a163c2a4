"""Staged repositories: the contents of mirrors, and clones from them offline."""

import os
import shutil
import subprocess
from pathlib import Path

from parts import need
from plimsoll.tasks.assets.asset import Request
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.fetches.fetch import Kind

URL = "https://example.invalid/org/parsers"


def request(revision=None, url=URL):
    return Request(Kind.GIT, (url,), revision)


def in_mirror(folder: Path, outcome, *args: str) -> str:
    (asset,) = [one for one in outcome.assets.assets if one.path.startswith("git/")]
    command = ["git", "-C", str(folder / asset.path), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_mirror_of_a_pinned_commit_has_its_past_and_no_later_commit(repo, stage, folder):
    pinned = repo.commit("a", "1")
    future = repo.commit("a", "2")
    repo.git("tag", "v2")

    outcome = stage(request(pinned), sources=LocalSources(git={URL: repo.path}))

    assert outcome.complete, outcome.failures
    log = in_mirror(folder, outcome, "log", "--all", "--format=%H").split()
    assert pinned in log and future not in log and len(log) == 2
    objects = in_mirror(folder, outcome, "cat-file", "--batch-all-objects", "--batch-check")
    assert future not in objects
    assert in_mirror(folder, outcome, "tag").split() == ["v1"]


def test_tags_branches_and_short_commits_are_found(repo, stage, folder):
    first = repo.git("rev-parse", "HEAD")
    repo.git("checkout", "-q", "-b", "side")
    side = repo.commit("b", "1")
    repo.git("checkout", "-q", "trunk")

    outcome = stage(
        request("v1"),
        request("side"),
        request(first[:9]),
        sources=LocalSources(git={URL: repo.path}),
    )

    assert outcome.complete, outcome.failures
    assert {first, side} <= set(outcome.assets.assets[0].pin.split())
    assert in_mirror(folder, outcome, "rev-parse", "side").strip() == side


def test_a_missing_revision_is_reported_and_the_others_are_staged(repo, stage):
    outcome = stage(request("v1"), request("v9"), sources=LocalSources(git={URL: repo.path}))

    (failure,) = outcome.failures
    assert failure.request.revision == "v9"
    assert "v9" in failure.reason
    assert len(outcome.assets.requests) == 1


def test_an_unreachable_repository_is_reported(stage, tmp_path):
    outcome = stage(request(url=f"file://{tmp_path}/nowhere"))

    assert not outcome.complete
    assert "nowhere" in outcome.failures[0].reason


def test_a_bundle_and_a_bare_repository_are_local_sources(repo, stage, tmp_path):
    repo.git("bundle", "create", "-q", str(tmp_path / "x.bundle"), "--all")
    bare = tmp_path / "bare.git"
    repo.git("clone", "-q", "--bare", str(repo.path), str(bare))
    other = "https://example.invalid/other"

    sources = LocalSources(git={URL: tmp_path / "x.bundle", other: bare})
    outcome = stage(request(), request("v1", other), sources=sources)

    assert outcome.complete, outcome.failures
    assert len(outcome.assets.assets) == 2


def test_a_repository_of_another_user_is_a_local_source(repo, stage):
    need("root", None if os.geteuid() == 0 else "only root can give a file away")
    for path in (repo.path, repo.path / ".git"):
        os.chown(path, 65534, 65534)

    outcome = stage(request(), sources=LocalSources(git={URL: repo.path}))

    assert outcome.complete, outcome.failures


def test_a_new_pin_is_added_even_if_the_origin_of_earlier_ones_is_gone(repo, stage, folder):
    first = repo.git("rev-parse", "HEAD")
    stage(request(first), sources=LocalSources(git={URL: repo.path}))
    other = repo.path.with_name("other")
    shutil.move(repo.path, other)
    repo.path = other
    second = repo.commit("c", "1")

    outcome = stage(request(second), sources=LocalSources(git={URL: other}))

    assert outcome.complete, outcome.failures
    log = in_mirror(folder, outcome, "log", "--all", "--format=%H").split()
    assert {first, second} == set(log)
    assert len(list((folder / "git").iterdir())) == 1
    assert all(request.assets for request in outcome.assets.requests)


def test_a_repository_is_fetched_over_http(repo, web, stage):
    root, url = web
    repo.git("clone", "-q", "--bare", str(repo.path), str(root / "served.git"))
    subprocess.run(["git", "-C", str(root / "served.git"), "update-server-info"], check=True)

    outcome = stage(request("v1", f"{url}/served.git"))

    assert outcome.complete, outcome.failures
    assert outcome.assets.assets[0].pin == repo.git("rev-parse", "v1")


async def test_an_unchanged_clone_works_in_a_sandbox_without_a_network(repo, stage, offline):
    pinned = repo.git("rev-parse", "HEAD")
    repo.commit("later", "1")
    stage(request(pinned), sources=LocalSources(git={URL: repo.path}))
    sandbox = await offline()

    for number, form in enumerate((URL, f"{URL}.git", f"{URL}/", f"{URL}.git/")):
        done = await sandbox.exec(
            f"git clone {form} /srv/x{number} && cd /srv/x{number} && "
            f"git checkout {pinned} && git log --oneline && cat lib/parser.py"
        )
        assert done.ok, done.stderr.text
        assert "ANSWER = 1" in done.stdout.text
    done = await sandbox.exec(f"git clone --depth 1 {URL} /srv/shallow")
    assert done.ok, done.stderr.text
    done = await sandbox.exec(
        f"git init -q /srv/f && cd /srv/f && git remote add origin {URL} && "
        f"git fetch --depth 1 origin {pinned} && git checkout -q FETCH_HEAD && ls lib"
    )
    assert done.ok, done.stderr.text
    # Without the shims, as a user who does not own the mirror.
    await sandbox.exec("mkdir -m 777 /srv/nobody")
    done = await sandbox.exec(
        f"/usr/bin/git clone {URL} /srv/nobody/x", user="nobody", env={"HOME": "/srv/nobody"}
    )
    assert done.ok, done.stderr.text


async def test_a_repository_with_a_longer_name_is_not_redirected(repo, stage, offline):
    stage(request(), sources=LocalSources(git={URL: repo.path}))
    sandbox = await offline()

    done = await sandbox.exec(f"git clone {URL}-extra /srv/y")

    assert not done.ok
    assert "resolve host" in done.stderr.text


async def test_the_system_git_configuration_is_read_and_writable(repo, stage, offline):
    stage(request(), sources=LocalSources(git={URL: repo.path}))
    sandbox = await offline()

    done = await sandbox.exec(
        "git config --system user.name someone && git config user.name && "
        "git config --global user.name other && git config user.name"
    )

    assert done.stdout.text.split() == ["someone", "other"], done.stderr.text


def test_a_bundle_without_a_head_has_a_main_branch(repo, stage, tmp_path):
    repo.git("branch", "before")
    repo.git("bundle", "create", "-q", str(tmp_path / "x.bundle"), "--branches")

    outcome = stage(request(), sources=LocalSources(git={URL: tmp_path / "x.bundle"}))

    assert outcome.complete, outcome.failures
    assert outcome.assets.assets[0].pin == repo.git("rev-parse", "HEAD")
