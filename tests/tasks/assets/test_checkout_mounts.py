"""Checkouts are mounted at clone destinations, except for folders that tasks change."""

import pytest

from helpers import write_task_folder
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.plan import make_plan
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.fetches.finder import find_fetches

URL = "https://example.invalid/org/parsers"


def a_task(folder, *lines, name="t"):
    files = {
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "\n".join(("FROM debian:12", *lines)) + "\n",
        "tests/test.sh": "#!/bin/bash\n",
    }
    return write_task_folder(folder / name, files)


def mounted(tmp_path, stage, repo, *tasks):
    outcome = stage(plan=make_plan(tasks), sources=LocalSources(git={URL: repo.path}))
    assert outcome.complete, outcome.failures
    return [mount.target for mount in outcome.assets.mounts()][1:]


async def test_a_clone_into_a_mounted_checkout_succeeds(tmp_path, repo, stage, offline):
    pinned = repo.git("rev-parse", "HEAD")
    repo.commit("later", "1")
    script = f"git clone {URL}.git /opt/parsers && cd /opt/parsers && git checkout {pinned}"
    task = a_task(tmp_path, f"RUN {script}")
    assert mounted(tmp_path, stage, repo, task) == ["/opt/parsers"]
    sandbox = await offline()

    there = await sandbox.exec("cat /opt/parsers/lib/parser.py; touch /opt/parsers/x")
    assert "ANSWER = 1" in there.stdout.text
    assert "Read-only" in there.stderr.text
    done = await sandbox.exec(script)
    assert done.ok, done.stderr.text
    assert "already" in done.stderr.text
    done = await sandbox.exec(f"cd /opt && git clone {URL} && git -C parsers fetch origin")
    assert done.ok, done.stderr.text
    refused = await sandbox.exec("git -C /opt/parsers checkout some-other-branch")
    assert not refused.ok


async def test_a_clone_into_a_folder_with_other_contents_fails(tmp_path, repo, stage, offline):
    mounted(tmp_path, stage, repo, a_task(tmp_path, f"RUN git clone {URL} /opt/parsers"))
    sandbox = await offline()

    await sandbox.exec("git init -q /srv/mine && touch /srv/mine/file")
    done = await sandbox.exec(f"git clone {URL} /srv/mine")

    assert not done.ok
    assert "already exists" in done.stderr.text


@pytest.mark.parametrize(
    "lines",
    [
        (f"RUN git clone {URL} /opt/p && pip install /opt/p",),
        (f"RUN git clone {URL} /opt/p", "RUN make -C /opt/p"),
        (f"RUN git clone {URL} /opt/p", "WORKDIR /opt/p"),
        (f"RUN git clone {URL} /opt/p", "COPY fix.patch /opt/p/fix.patch"),
        (f"RUN git clone {URL} /app",),
        ("WORKDIR /opt/p", f"RUN git clone {URL} . && touch x"),
    ],
)
def test_a_folder_that_the_task_changes_is_not_mounted(tmp_path, repo, stage, lines):
    task = a_task(tmp_path, *lines)
    plan = make_plan([task])
    plan.requests = {key: one for key, one in plan.requests.items() if key[0] == "git"}

    outcome = stage(plan=plan, sources=LocalSources(git={URL: repo.path}))

    assert outcome.complete, outcome.failures
    assert len(outcome.assets.mounts()) == 1


def test_a_path_that_tasks_clone_different_repositories_to_is_not_mounted(tmp_path, repo, stage):
    first = repo.git("rev-parse", "HEAD")
    second = repo.commit("b", "1")
    clone = f"RUN git clone {URL} /opt/p && git -C /opt/p checkout"
    one = a_task(tmp_path, f"{clone} {first}", name="one")
    two = a_task(tmp_path, f"{clone} {second}", name="two")

    assert mounted(tmp_path, stage, repo, one) == ["/opt/p"]
    assert mounted(tmp_path, stage, repo, one, two) == []


def test_a_task_gets_only_the_mounts_of_its_own_clones(tmp_path, repo, stage, folder):
    one = a_task(tmp_path, f"RUN git clone {URL} /opt/p", name="one")
    two = a_task(tmp_path, "RUN true", name="two")
    mounted(tmp_path, stage, repo, one, two)
    assets = StagedAssets.load(folder)

    assert len(assets.mounts(find_fetches(one))) == 2
    assert len(assets.mounts(find_fetches(two))) == 1
