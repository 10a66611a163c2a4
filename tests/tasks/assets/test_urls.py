"""Staged files of URLs, and the curl and wget shims that serve them."""

import os
import subprocess
from pathlib import Path

import pytest

from plimsoll.tasks.assets.asset import Request
from plimsoll.tasks.assets.local_sources import LocalSources
from plimsoll.tasks.fetches.fetch import Kind

URL = "https://example.invalid/data/set.txt"


def request(url=URL):
    return Request(Kind.URL, (url,))


@pytest.fixture
def shims(tmp_path, folder, stage):
    """Run a script with the shims first in a minimal PATH."""
    file = tmp_path / "set.txt"
    file.write_text("staged\n")
    assert stage(request(), sources=LocalSources(urls={URL: file})).complete
    work = tmp_path / "work"
    work.mkdir()

    def run(script: str, path: str = "/bin"):
        done = subprocess.run(
            ["/bin/dash" if Path("/bin/dash").exists() else "/bin/sh", "-c", script],
            cwd=work,
            env={"PATH": f"{folder}/shims:{path}", "http_proxy": "", "HOME": str(work)},
            capture_output=True,
            text=True,
        )
        return done, {p.name: p.read_text() for p in work.iterdir() if p.is_file()}

    return run


def test_a_file_is_downloaded_once_with_its_digest(web, stage, folder):
    root, base = web
    (root / "a.txt").write_text("one")

    outcome = stage(request(f"{base}/a.txt"))
    (asset,) = outcome.assets.assets
    (root / "a.txt").write_text("two")
    again = stage(request(f"{base}/a.txt"))

    assert asset.digest.startswith("sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e714")
    assert asset.pin == asset.digest
    assert (folder / asset.path).read_text() == "one"
    assert again.assets.assets == (asset,)
    assert again.staged == []


def test_a_missing_file_of_the_server_is_reported(web, stage, folder):
    outcome = stage(request(f"{web[1]}/absent"), request(f"{web[1]}/"))

    (failure,) = outcome.failures
    assert "404" in failure.reason
    assert len(outcome.assets.assets) == 1


def test_a_url_with_other_than_ascii_characters_is_downloaded(web, stage, folder):
    root, base = web
    (root / "größe.txt").write_text("one")

    outcome = stage(request(f"{base}/größe.txt"))

    (asset,) = outcome.assets.assets
    assert (folder / asset.path).read_text() == "one"


def test_an_invalid_url_is_reported_and_the_others_are_staged(web, stage, folder):
    (web[0] / "a.txt").write_text("one")

    outcome = stage(request("http://[::1/a.txt"), request(f"{web[1]}/a.txt"))

    (failure,) = outcome.failures
    assert failure.reason.startswith("not a valid URL: ")
    assert len(outcome.assets.assets) == 1


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("curl {url}", None),
        ("curl -LsSf {url} | cat", None),
        ("curl -fsSL --retry 3 -H 'A: b' {url}", None),
        ("curl -o out {url}", "out"),
        ("curl -fsSLo out {url}", "out"),
        ("curl -sSoout {url}", "out"),
        ("curl --output out --location {url}", "out"),
        ("curl -LO {url}", "set.txt"),
        ("curl -X GET {url} -o -", None),
        ("wget {url}", "set.txt"),
        ("wget -q {url} -O out", "out"),
        ("wget -qO- {url}", None),
        ("wget -O - {url}", None),
        ("wget --output-document=out {url}", "out"),
        ("wget -nv -t 3 {url}", "set.txt"),
        ("wget --no-check-certificate -P . {url}", "set.txt"),
    ],
)
def test_a_staged_file_is_served_for_all_forms_of_the_command(shims, command, name):
    done, files = shims(command.format(url=URL))

    assert done.returncode == 0, done.stderr
    if name is None:
        assert (done.stdout, files) == ("staged\n", {})
    else:
        assert (done.stdout, files) == ("", {name: "staged\n"})


def test_folders_are_created_on_request(shims):
    done, _ = shims(f"curl -s --create-dirs -o a/b {URL} && wget -qP c/d {URL} && cat a/b c/d/*")

    assert done.stdout == "staged\nstaged\n", done.stderr


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (
            "curl -fsSL https://other.invalid/x",
            6,
            "curl: (6) Could not resolve host: other.invalid",
        ),
        ("wget https://me@other.invalid:1/x", 4, "unable to resolve host address 'other.invalid'"),
        (f"curl -d x=1 {URL}", 6, "Could not resolve"),
        (f"curl -s {URL} -o no/such/folder", 23, "curl: (23)"),
    ],
)
def test_a_url_that_is_not_staged_fails_as_without_a_network(shims, tmp_path, command, code, words):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cat").symlink_to("/bin/cat")

    done, _ = shims(command, path=str(tools))

    assert done.returncode == code
    assert words in done.stderr


@pytest.mark.parametrize("name", ["curl", "wget", "git"])
def test_other_commands_run_the_real_program_with_unchanged_arguments(shims, tmp_path, name):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / name).write_text('#!/bin/sh\nfor a; do printf "<%s>" "$a"; done; exit 7\n')
    (tools / name).chmod(0o755)

    done, _ = shims(f"{name} -o 'a  b' --x=\"*\" 'https://other.invalid/ x' ''", f"{tools}:/bin")

    assert done.returncode == 7
    assert done.stdout.endswith("<-o><a  b><--x=*><https://other.invalid/ x><>")


def test_a_shim_never_calls_itself(shims, folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder / "shims")

    done, _ = shims("curl https://other.invalid/x", path=f"{link}:{folder}/shims/:/nowhere")

    assert done.returncode == 6


async def test_a_script_is_piped_to_a_shell_in_a_sandbox_without_a_network(
    tmp_path, stage, offline
):
    url = "https://example.invalid/install.sh"
    file = tmp_path / "install.sh"
    file.write_text("echo installed > /srv/done\n")
    stage(request(url), sources=LocalSources(urls={url: file}))
    sandbox = await offline()

    done = await sandbox.exec(f"set -o pipefail; curl -LsSf {url} | sh && cat /srv/done")
    other = await sandbox.exec("curl -sS https://example.invalid/other")

    assert done.ok, done.stderr.text
    assert done.stdout.text == "installed\n"
    assert other.exit_code == 6


def test_all_users_can_read_assets_staged_under_a_strict_umask(tmp_path, stage, folder):
    file = tmp_path / "f"
    file.write_text("x")
    file.chmod(0o600)
    before = os.umask(0o077)
    try:
        outcome = stage(request(), sources=LocalSources(urls={URL: file}))
    finally:
        os.umask(before)

    paths = [folder / outcome.assets.assets[0].path, folder / "shims/curl", folder / "assets.toml"]
    for path in (*paths, folder, folder / "files", folder / "shims"):
        assert path.stat().st_mode & 0o004, path
