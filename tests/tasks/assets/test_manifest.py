"""assets.toml, and the fetches, mounts and variables that follow from it."""

from dataclasses import replace

import pytest

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.asset import ASSETS_MOUNT, Asset, Request
from plimsoll.tasks.assets.local_sources import parse_local_sources
from plimsoll.tasks.assets.manifest_file import read_manifest, write_manifest
from plimsoll.tasks.assets.staged_assets import StagedAssets
from plimsoll.tasks.fetches.fetch import Fetch, Kind, Phase

DIGEST = f"sha256:{'0' * 64}"


def asset(kind=Kind.URL, path="files/x", **more):
    return Asset(kind, "s", "p", DIGEST, 1, path, more.get("mount"), "how")


def fetch(tool, kind, *what, revision=None):
    return Fetch(tool, kind, what, revision, None, Phase.TEST, "tests/test.sh", 1, False)


def assets(tmp_path, *pairs):
    """Staged assets for requests with one asset each."""
    staged = [asset(request.kind, f"x/{n}") for n, request in enumerate(pairs)]
    satisfied = [replace(r, assets=(a.path,)) for r, a in zip(pairs, staged, strict=True)]
    return StagedAssets(tmp_path, tuple(staged), tuple(satisfied))


def test_a_manifest_round_trips(tmp_path):
    odd = Asset(Kind.GIT, 'a "b" \\ \n\x7f é 🚢', "", DIGEST, 0, "git/x y.git", "/opt/x", "=#'")
    requests = (Request(Kind.WHEELS, ("b", 'a"'), None, "3.11", ("wheels/x",)),)
    write_manifest(tmp_path, [odd], requests)

    assert read_manifest(tmp_path) == ((odd,), requests)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('path = "../x"', "inside the assets folder"),
        ('path = "/etc/passwd"', "inside the assets folder"),
        ('mount = "opt/x"', "an absolute path"),
        ('mount = "/"', "an absolute path"),
        ('digest = "abc"', "digest"),
        ('kind = "apples"', "kind"),
        ('colour = "red"', "colour"),
        ("size = -1", "size"),
    ],
)
def test_an_invalid_edit_is_reported_with_its_line(tmp_path, line, words):
    write_manifest(tmp_path, [asset(mount="/opt/x")], [])
    key = line.split(" = ")[0]
    old = (tmp_path / "assets.toml").read_text().splitlines()
    new = [text for text in old if not text.startswith(f"{key} =")] + [line]
    (tmp_path / "assets.toml").write_text("\n".join(new))

    with pytest.raises(AssetError) as error:
        StagedAssets.load(tmp_path)

    assert words in str(error.value)
    assert f"assets.toml:{len(new)}: " in str(error.value)


def test_a_missing_manifest_is_an_error_with_advice(tmp_path):
    with pytest.raises(AssetError, match="plimsoll stage TASKS --to"):
        StagedAssets.load(tmp_path)


def test_a_mount_that_a_user_removes_stays_removed(tmp_path):
    write_manifest(tmp_path, [asset(Kind.GIT, "checkouts/x", mount="/opt/x")], [])
    file = tmp_path / "assets.toml"
    file.write_text(file.read_text().replace('mount = "/opt/x"\n', ""))

    assert [mount.target for mount in StagedAssets.load(tmp_path).mounts()] == [ASSETS_MOUNT]


COVERED = [
    (fetch("git", Kind.GIT, "https://h/o/r.git"), Request(Kind.GIT, ("https://h/o/r",))),
    (fetch("git", Kind.GIT, "https://h/o/r/", revision="v1"),
     Request(Kind.GIT, ("https://h/o/r",), "v1")),
    (fetch("curl", Kind.URL, "https://h/f"), Request(Kind.URL, ("https://h/f",))),
    (fetch("pip", Kind.WHEELS, "a"), Request(Kind.WHEELS, ("a", "b"), None, "3.11")),
    (fetch("npx", Kind.NPM, "jest"), Request(Kind.NPM, ("jest",))),
    (fetch("curl", Kind.UV_TOOL, "https://h/uv/install.sh"),
     Request(Kind.UV_TOOL, ("https://h/uv/install.sh",))),
]  # fmt: skip
NOT_COVERED = [
    (fetch("git", Kind.GIT, "https://h/o/r", revision="v2"),
     Request(Kind.GIT, ("https://h/o/r",), "v1")),
    (fetch("git", Kind.GIT, "https://h/o/r2"), Request(Kind.GIT, ("https://h/o/r",))),
    (fetch("git", Kind.GIT), Request(Kind.GIT, ("https://h/o/r",))),
    (fetch("curl", Kind.URL, "https://h/f", "https://h/g"), Request(Kind.URL, ("https://h/f",))),
    (fetch("python", Kind.URL, "https://h/f"), Request(Kind.URL, ("https://h/f",))),
    (fetch("curl", Kind.URL, "https://h/$X"), Request(Kind.URL, ("https://h/$X",))),
    (fetch("pip", Kind.WHEELS, "a", "c"), Request(Kind.WHEELS, ("a", "b"), None, "3.11")),
    (fetch("pip", Kind.WHEELS, "a==2"), Request(Kind.WHEELS, ("a==1",), None, "3.11")),
    (fetch("pip", Kind.WHEELS), Request(Kind.WHEELS, ("a",), None, "3.11")),
    (fetch("apt-get", Kind.OTHER, "gcc"), Request(Kind.OTHER, ("gcc",))),
]  # fmt: skip
OTHER = Request(Kind.WHEELS, ("setuptools", "wheel"), None, "3.11")


@pytest.mark.parametrize(("fetched", "request_"), COVERED)
def test_a_fetch_is_covered_by_its_request(tmp_path, fetched, request_):
    assert assets(tmp_path, request_, OTHER).covers(fetched)
    assert not assets(tmp_path, OTHER).covers(fetched)


@pytest.mark.parametrize(("fetched", "request_"), NOT_COVERED)
def test_a_fetch_is_not_covered_by_another_request(tmp_path, fetched, request_):
    assert not assets(tmp_path, request_, OTHER).covers(fetched)


def test_a_request_without_its_asset_covers_nothing(tmp_path):
    request = Request(Kind.URL, ("https://h/f",))
    have = assets(tmp_path, request)
    assert not replace(have, assets=()).covers(fetch("curl", Kind.URL, "https://h/f"))


def test_the_environment_refers_only_to_staged_assets(tmp_path):
    assert StagedAssets(tmp_path, (), ()).env() == {}
    only_files = assets(tmp_path, Request(Kind.URL, ("https://h/f",)))
    assert only_files.env() == {}
    wheels = assets(tmp_path, Request(Kind.WHEELS, ("a",))).env()
    assert wheels["PIP_FIND_LINKS"] == f"{ASSETS_MOUNT}/wheels"
    assert wheels["PIP_NO_INDEX"] == wheels["UV_OFFLINE"] == "1"
    assert not any(key.startswith(("GIT", "npm")) for key in wheels)
    assert "GIT_CONFIG_COUNT" in assets(tmp_path, Request(Kind.GIT, ("u",))).env()


def test_local_sources_may_contain_equal_signs(tmp_path):
    odd = tmp_path / "a=b"
    odd.write_text("")

    sources = parse_local_sources(
        [f"url:https://h/f?x=1&y={odd}", f"git:https://h/r.git={tmp_path}"]
    )

    assert sources.urls == {"https://h/f?x=1&y": odd}
    assert sources.git == {"https://h/r": tmp_path}


def test_a_manifest_of_another_version_is_rejected(tmp_path):
    write_manifest(tmp_path, [asset()], [])
    file = tmp_path / "assets.toml"
    file.write_text(file.read_text().replace("version = 1", "version = 2"))
    with pytest.raises(
        AssetError, match=r"assets.toml:4: version: 2 is the format of another version of Plimsoll"
    ):
        StagedAssets.load(tmp_path)


def test_assets_without_files_are_missing(tmp_path):
    have = assets(tmp_path, Request(Kind.URL, ("https://h/f",)))
    assert have.missing() == ["shims", have.assets[0].path]
    for path in have.missing():
        (tmp_path / path).mkdir(parents=True)
    assert have.missing() == []


def test_a_task_is_offline_only_if_all_its_packages_are_staged(tmp_path):
    have = assets(tmp_path, Request(Kind.WHEELS, ("a",), None, "3.11"))
    a, b = fetch("pip", Kind.WHEELS, "a"), fetch("pip", Kind.WHEELS, "b")
    closed = {"PIP_NO_INDEX", "UV_OFFLINE", "UV_NO_INDEX"}
    assert closed <= set(have.env([a]))
    for fetches in ([], [b], [a, b], [a, fetch("pip", Kind.WHEELS)]):
        assert closed.isdisjoint(have.env(fetches))
        assert "PIP_FIND_LINKS" in have.env(fetches)
