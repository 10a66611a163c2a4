"""Staging with interruptions, full disks, damaged assets and concurrent stagers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mounts import tmpfs
from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import Request
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.plan import make_plan
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.assets.stager import Stager, check_assets
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.fetches.fetch import Kind

REPO = "https://example.invalid/repo"


def file_at(url):
    return Request(Kind.URL, (url,))


def local_files(tmp_path, count, size=1000):
    """Local sources of URLs."""
    urls = {}
    for number in range(count):
        file = tmp_path / f"file{number}"
        file.write_bytes(bytes([number]) * size)
        urls[f"https://example.invalid/{number}"] = file
    return LocalSources(urls=urls)


def partial_files(folder: Path) -> list[Path]:
    return list(folder.rglob(".partial-*"))


def test_a_second_run_fetches_nothing(tmp_path, repo, stage, folder):
    sources = LocalSources(git={REPO: repo.path}, urls=local_files(tmp_path, 2).urls)
    first = stage(*sources.requests(), sources=sources)
    before = (folder / "assets.toml").read_bytes()

    again = stage(*sources.requests())

    assert first.complete and again.complete
    assert (again.staged, again.reused) == ([], 3)
    assert (folder / "assets.toml").read_bytes() == before


@pytest.mark.parametrize("how", ["change", "cut", "remove"])
def test_only_damaged_assets_are_staged_again(tmp_path, stage, folder, how):
    sources = local_files(tmp_path, 3)
    stage(*sources.requests(), sources=sources)
    asset = StagedAssets.load(folder).assets[1]
    damaged = folder / asset.path
    match how:
        case "change":
            damaged.write_bytes(b"x" * asset.size)
        case "cut":
            damaged.write_bytes(damaged.read_bytes()[:-1])
        case "remove":
            damaged.unlink()
    assert list(check_assets(folder)[1]) == [asset.path]

    # The tasks of this run do not request it; it is repaired anyway.
    outcome = stage(sources=sources)

    assert outcome.complete
    assert outcome.staged == [asset.path]
    assert check_assets(folder)[1] == {}


def test_a_damaged_checkout_gets_its_mount_back(tmp_path, repo, stage, folder):
    sources = LocalSources(git={REPO: repo.path})
    plan = make_plan((), (), sources.requests())
    (key,) = plan.requests
    plan.clones["/opt/x"], plan.read_only["/opt/x"] = {key}, True
    stage(plan=plan, sources=sources)
    (checkout,) = [asset for asset in StagedAssets.load(folder).assets if asset.mount]
    (folder / checkout.path / "lib/parser.py").write_text("else\n")

    assert stage(sources=sources).complete

    assert check_assets(folder)[1] == {}
    assert [mount.target for mount in StagedAssets.load(folder).mounts()][1:] == ["/opt/x"]


def test_an_asset_that_cannot_be_repaired_is_reported_and_removed(tmp_path, stage, folder):
    sources = local_files(tmp_path, 2)
    stage(*sources.requests(), sources=sources)
    asset = StagedAssets.load(folder).assets[0]
    (folder / asset.path).unlink()

    outcome = stage()

    assert [failure.request.what[0] for failure in outcome.failures] == [asset.source]
    assert [left.source for left in StagedAssets.load(folder).assets] != [asset.source]
    assert len(StagedAssets.load(folder).assets) == 1


def test_changed_shims_are_reported_and_repaired(tmp_path, stage, folder):
    sources = local_files(tmp_path, 1)
    stage(*sources.requests(), sources=sources)
    (folder / "shims/curl").write_text("else")
    (folder / "shims/npx").unlink()

    assert set(check_assets(folder)[1]) == {"shims/curl", "shims/npx"}
    stage()
    assert check_assets(folder)[1] == {}


STAGE = """
import sys
from pathlib import Path
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.assets.store import AssetStore
from plimsoll.tasks.assets.plan import make_plan
from plimsoll.tasks.assets.stager import Stager
folder, repo, files = sys.argv[1:]
urls = {f"https://example.invalid/{p.name}": p for p in sorted(Path(files).iterdir())}
sources = LocalSources(git={"https://example.invalid/repo": Path(repo)}, urls=urls)
with AssetStore.locked(Path(folder)) as store:
    print("begun", flush=True)
    Stager(store, sources, lambda text: None).stage(make_plan((), (), sources.requests()))
"""


def test_a_stager_killed_at_any_time_leaves_no_partial_asset(tmp_path, repo, folder):
    files = tmp_path / "files"
    files.mkdir()
    local_files(files, 40, 2_000_000)
    command = [sys.executable, "-c", STAGE, str(folder), str(repo.path), str(files)]
    counts: list[int] = []
    # Each run gets a little more time than the one before, until one finishes.
    for delay in (0.02 * number for number in range(50)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
        with process:
            assert process.stdout and process.stdout.readline()
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGKILL)
        if (folder / "assets.toml").exists():
            assets, wrong = check_assets(folder)
            assert {p: w for p, w in wrong.items() if not p.startswith("shims/")} == {}
            counts.append(len(assets.assets))
            if counts[-1] == 41:
                break
    assert counts == sorted(counts)
    assert any(0 < count < 41 for count in counts), counts

    done = subprocess.run(command, check=False)

    assert done.returncode == 0
    assert check_assets(folder)[1] == {}
    assert len(StagedAssets.load(folder).assets) == 41
    assert partial_files(folder) == []


@pytest.fixture
def tiny(folder):
    """The assets folder on a file system of four megabytes."""
    with tmpfs(folder, "4m"):
        yield folder


def test_a_full_disk_is_reported_and_the_old_state_remains(tmp_path, repo, stage, tiny):
    small = local_files(tmp_path, 2)
    stage(*small.requests(), sources=small)
    before = (tiny / "assets.toml").read_bytes()
    big = tmp_path / "big"
    big.write_bytes(b"x" * 5_000_000)
    repo.commit("noise", os.urandom(3_000_000).hex())

    for sources in (
        LocalSources(urls={"https://example.invalid/big": big}),
        LocalSources(git={REPO: repo.path}),
    ):
        outcome = stage(*sources.requests(), sources=sources)

        assert not outcome.complete
        assert "no space left" in (outcome.stopped or ""), outcome.failures
        assert (tiny / "assets.toml").read_bytes() == before
        assert check_assets(tiny)[1] == {}
        assert partial_files(tiny) == []


def test_a_failed_write_of_the_manifest_keeps_the_old_one(tmp_path, stage, tiny):
    small = local_files(tmp_path, 1)
    stage(*small.requests(), sources=small)
    before = (tiny / "assets.toml").read_bytes()
    with pytest.raises(OSError, match="space"):
        (tiny / "filler").write_bytes(b"x" * 5_000_000)

    outcome = stage(file_at("https://example.invalid/1"), sources=local_files(tmp_path, 2, 10))

    assert outcome.stopped
    assert (tiny / "assets.toml").read_bytes() == before


def test_a_second_stager_is_rejected(folder):
    with AssetStore.locked(folder), pytest.raises(AssetError) as refused, AssetStore.locked(folder):
        pass
    assert f"pid {os.getpid()} on " in str(refused.value)
    with AssetStore.locked(folder):
        pass


def test_an_unwritable_folder_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(AssetError, match="file/assets"),
        AssetStore.locked(tmp_path / "file/assets"),
    ):
        pass


def test_the_stager_rejects_an_unreadable_manifest(folder, stage):
    folder.mkdir()
    (folder / "assets.toml").write_text("version = 7\n")
    with (
        pytest.raises(AssetError, match=r"assets.toml:1: version"),
        AssetStore.locked(folder) as store,
    ):
        Stager(store, LocalSources(), print)


def test_a_damaged_checkout_is_restored_from_its_mirror_at_its_pin(tmp_path, repo, stage, folder):
    sources = LocalSources(git={REPO: repo.path})
    plan = make_plan((), (), sources.requests())
    (key,) = plan.requests
    plan.clones["/opt/x"], plan.read_only["/opt/x"] = {key}, True
    stage(plan=plan, sources=sources)
    (checkout,) = [asset for asset in StagedAssets.load(folder).assets if asset.mount]
    (folder / checkout.path / "lib/parser.py").write_text("else\n")
    repo.commit("later", "1")

    outcome = stage()  # the origin cannot be reached

    assert outcome.complete, outcome.failures
    assert check_assets(folder)[1] == {}
    (mended,) = [asset for asset in StagedAssets.load(folder).assets if asset.mount]
    assert (mended.pin, mended.mount) == (checkout.pin, "/opt/x")


def test_a_file_in_place_of_a_staged_folder_is_replaced(repo, stage, folder):
    sources = LocalSources(git={REPO: repo.path})
    stage(*sources.requests(), sources=sources)
    (mirror,) = StagedAssets.load(folder).assets
    (folder / mirror.path).rename(folder / "aside")
    (folder / mirror.path).write_text("a file\n")

    assert stage(sources=sources).complete
    assert check_assets(folder)[1] == {}


@pytest.mark.parametrize("name", ["files", "shims"])
def test_a_file_in_place_of_a_folder_is_an_error_that_names_it(tmp_path, stage, folder, name):
    folder.mkdir()
    (folder / name).write_text("a file\n")
    sources = local_files(tmp_path, 1)
    with pytest.raises(AssetError, match=rf"/{name}: .*File exists"):
        stage(*sources.requests(), sources=sources)
    assert partial_files(folder) == []


def test_a_run_without_changes_writes_nothing(tmp_path, stage, folder):
    sources = local_files(tmp_path, 1)
    stage(*sources.requests(), sources=sources)
    before = (folder / "assets.toml").stat().st_ino
    assert stage(*sources.requests()).complete
    assert (folder / "assets.toml").stat().st_ino == before
