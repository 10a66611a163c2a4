"""Uploads and downloads: complete, and no path and no link leaves its target."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from plimsoll.core.errors import TransferError
from plimsoll.sandboxes.protocol import Sandbox

pytestmark = pytest.mark.every_backend


def _tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The entries below a folder: for each name its kind, mode and content."""
    return {str(path.relative_to(folder)): _held(path) for path in folder.rglob("*")}


def _held(path: Path) -> tuple[int, bytes]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return stat.S_IFLNK, os.fsencode(path.readlink())
    return mode, b"" if stat.S_ISDIR(mode) else path.read_bytes()


async def _output(sandbox: Sandbox, command: str) -> str:
    done = await sandbox.exec(command)
    assert done.ok, done.complaint()
    return done.stdout.text


async def test_a_file_round_trips(sandbox: Sandbox, tmp_path: Path):
    content = os.urandom(3_000_001)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a").chmod(0o750)
    sent = await sandbox.upload(tmp_path / "a", "/new/folder/b")
    assert (sent.files, sent.bytes, sent.skipped) == (1, len(content), ())
    assert await _output(sandbox, "stat -c '%a %s %U' /new/folder/b") == "750 3000001 root\n"
    back = await sandbox.download("/new/folder/b", tmp_path / "deep/er/c")
    assert (back.files, back.bytes) == (1, len(content))
    assert (tmp_path / "deep/er/c").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "deep/er/c").stat().st_mode) == 0o750


async def test_a_folder_round_trips_unchanged(sandbox: Sandbox, tmp_path: Path):
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "sub/deeper").mkdir(parents=True)
    (source / "sub").chmod(0o711)
    (source / "nothing").touch()
    (source / "sub/run.sh").write_text("#!/bin/sh\n")
    (source / "sub/run.sh").chmod(0o755)
    (source / "sub/secret").write_text("s")
    (source / "sub/secret").chmod(0o400)
    (source / "ünï ¢ødé\n").write_text("newline")
    (source / "-rf").write_text("dash")
    Path(os.fsdecode(os.fsencode(source) + b"/not-\xff\xfe-utf8")).write_bytes(b"\x00\xff")
    (source / "link").symlink_to("sub/run.sh")
    (source / "sub/deeper/up").symlink_to("../../nothing")
    (source / "loop").symlink_to("loop")
    (source / "dangling").symlink_to("sub/not-there")
    (source / "folder-link").symlink_to("sub")
    sent = await sandbox.upload(source, "/target")
    assert sent.skipped == ()
    back = await sandbox.download("/target", tmp_path / "back")
    assert back.skipped == ()
    assert back.files == sent.files
    assert _tree(tmp_path / "back") == _tree(source)


async def test_big_files_and_many_files_are_copied(sandbox: Sandbox, tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    with (source / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 200 << 20)
    for number in range(2000):
        (source / f"f{number}").write_text(str(number))
    sent = await sandbox.upload(source, "/many")
    assert sent.files == 2001
    assert sent.bytes > 200 << 20
    assert await _output(sandbox, "ls /many | wc -l; stat -c %s /many/big") == "2001\n209715200\n"
    await sandbox.exec("rm /many/big")
    assert (await sandbox.download("/many", tmp_path / "back")).files == 2000
    assert (tmp_path / "back/f1999").read_text() == "1999"


async def test_a_folder_is_merged_into_the_target(sandbox: Sandbox, tmp_path: Path):
    (tmp_path / "source/sub").mkdir(parents=True)
    (tmp_path / "source/sub/new").write_text("new")
    (tmp_path / "source/old").write_text("replaced")
    await sandbox.exec("mkdir -p /t/sub; echo kept > /t/sub/kept; echo old > /t/old")
    await sandbox.upload(tmp_path / "source", "/t")
    assert await _output(sandbox, "cat /t/sub/kept /t/sub/new /t/old") == "kept\nnewreplaced"


async def test_links_that_leave_the_folder_are_skipped_and_listed(sandbox: Sandbox, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name, to in {
        "absolute": "/etc/passwd",
        "up": "..",
        "upper": "sub/../../x",
        "sub/out": "../../etc/passwd",
    }.items():
        (source / name).symlink_to(to)
    (source / "kept").symlink_to("sub")
    sent = await sandbox.upload(source, "/t")
    assert len(sent.skipped) == 4
    for name in ("absolute", "up", "upper", "sub/out"):
        assert any(line.startswith(f"{name}:") for line in sent.skipped)
    assert await _output(sandbox, "find /t -type l") == "/t/kept\n"


async def test_a_download_skips_links_to_outside(sandbox: Sandbox, tmp_path: Path):
    await sandbox.exec(
        "mkdir -p /d/sub; cd /d; ln -s /etc/passwd absolute; ln -s /d/sub own; ln -s .. up; "
        "ln -s ../../../../../../etc/passwd sub/far; ln -s sub kept; echo x > sub/x"
    )
    got = await sandbox.download("/d", tmp_path / "out")
    assert len(got.skipped) == 4
    assert sorted(x.name for x in (tmp_path / "out").iterdir()) == ["kept", "sub"]
    assert [x.name for x in (tmp_path / "out/sub").iterdir()] == ["x"]


@pytest.mark.parametrize(
    "make",
    [
        "mkdir -p a/b/c; ln -s ../../.. a/b/c/up; ln -s a/b/c/up/../secret evil",
        "mkdir -p a/b; ln -s ../.. a/b/up; ln -s a/b/up z; ln -s z/../secret evil",
        "mkdir -p a/b/c/d; ln -s . here; ln -s here/a/b here/c; ln -s c/../../../secret evil",
        "mkdir -p a/b/c; ln -s ../.. a/b/up; ln -s a/b/up/.. evil",
    ],
)
async def test_no_link_leaves_a_download_through_another(
    sandbox: Sandbox, tmp_path: Path, make: str
):
    (tmp_path / "secret").write_text("of the host")
    made = await sandbox.exec(f"mkdir /d; cd /d; {make}")
    assert made.ok, made.complaint()
    got = await sandbox.download("/d", tmp_path / "out")
    for at, folders, files in os.walk(tmp_path / "out"):
        for name in (*folders, *files):
            real = Path(at, name).resolve()
            assert real.is_relative_to(tmp_path / "out"), f"{name} leads to {real}"
    assert got.skipped


async def test_a_link_as_the_source_of_a_download_is_not_followed(sandbox: Sandbox, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    await sandbox.exec(f"ln -s {secret} /tmp/link; ln -s /etc /folder; ln -s /etc/passwd /file")
    for link in ("/tmp/link", "/folder", "/file"):
        with pytest.raises(TransferError, match=link):
            await sandbox.download(link, tmp_path / "out")
    assert not (tmp_path / "out").exists()


async def test_an_upload_does_not_go_through_links_that_an_agent_planted(
    sandbox: Sandbox, tmp_path: Path
):
    source = tmp_path / "source"
    (source / "sub/deeper").mkdir(parents=True)
    for name in ("file", "sub/passwd", "sub/deeper/x"):
        (source / name).write_text("uploaded")
    before = await _output(sandbox, "md5sum /etc/passwd; ls -lA /etc")
    await sandbox.exec("mkdir /t; ln -s /etc /t/sub; ln -s /etc/passwd /t/file")
    await sandbox.upload(source, "/t")
    assert await _output(sandbox, "md5sum /etc/passwd; ls -lA /etc") == before
    assert await _output(sandbox, "cat /t/file /t/sub/passwd /t/sub/deeper/x") == "uploaded" * 3
    assert await _output(sandbox, "find /t -type l") == ""


async def test_an_upload_over_a_link_replaces_the_link(sandbox: Sandbox, tmp_path: Path):
    (tmp_path / "file").write_text("uploaded")
    await sandbox.exec("echo mine > /victim; ln -s /victim /link")
    await sandbox.upload(tmp_path / "file", "/link")
    assert await _output(sandbox, "cat /victim; cat /link") == "mine\nuploaded"


async def test_a_download_over_a_link_of_the_host_replaces_the_link(
    sandbox: Sandbox, tmp_path: Path
):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").symlink_to(tmp_path / "victim")
    (tmp_path / "out/folder").symlink_to(tmp_path)
    await sandbox.exec("mkdir -p /d/folder; echo new > /d/file; echo new > /d/folder/victim")
    await sandbox.download("/d", tmp_path / "out")
    await sandbox.download("/d/file", tmp_path / "out/file")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "out/file").read_text() == "new\n"
    assert not (tmp_path / "out/folder").is_symlink()


@pytest.mark.parametrize("plant", ["ln -s /nowhere /tests", "echo x > /tests", "mkfifo /tests"])
async def test_obstacles_of_an_agent_do_not_stop_an_upload(
    sandbox: Sandbox, tmp_path: Path, plant: str
):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/test.sh").write_text("x")
    await sandbox.exec(plant)
    await sandbox.empty("/tests")
    await sandbox.upload(tmp_path / "source", "/tests")
    assert await _output(sandbox, "cat /tests/test.sh") == "x"


async def test_devices_and_sockets_are_skipped_and_listed(sandbox: Sandbox, tmp_path: Path):
    await sandbox.exec(
        "mkdir /d; cd /d; mkfifo pipe; echo x > file; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\""
    )
    got = await asyncio.wait_for(sandbox.download("/d", tmp_path / "out"), 60)
    assert sorted(line.split(":")[0] for line in got.skipped) == ["pipe", "socket"]
    assert [x.name for x in (tmp_path / "out").iterdir()] == ["file"]
    with pytest.raises(TransferError, match="/d/pipe"):
        await asyncio.wait_for(sandbox.download("/d/pipe", tmp_path / "out2"), 60)
    with pytest.raises(TransferError, match="/dev/zero"):
        await asyncio.wait_for(sandbox.download("/dev/zero", tmp_path / "out2"), 60)


async def test_an_upload_skips_pipes_and_sockets(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path / "s")
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    sent = await asyncio.wait_for(sandbox.upload(tmp_path / "s", "/t"), 60)
    assert len(sent.skipped) == 2
    assert await _output(sandbox, "ls -A /t") == ""


async def test_many_skipped_links_with_long_names_are_reported(sandbox: Sandbox, tmp_path: Path):
    for number in range(150):
        (tmp_path / f"{'é' * 100}{number}").symlink_to("/etc/" + "é" * 300)
    sent = await sandbox.upload(tmp_path, "/t")
    assert sent.skipped
    assert sent.files == 0
    assert (await sandbox.exec("true")).ok


async def test_a_download_drops_set_id_bits(sandbox: Sandbox, tmp_path: Path):
    await _output(sandbox, "mkdir /d; cp /bin/true /d/tool; chmod 6755 /d/tool; chmod 2755 /d")
    await sandbox.download("/d", tmp_path / "out")
    assert (tmp_path / "out/tool").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "out").stat().st_mode & 0o7000 == 0


async def test_a_download_over_its_limit_is_an_error(sandbox: Sandbox, tmp_path: Path):
    await sandbox.exec("mkdir /d; head -c 600000 /dev/zero | tee /d/a > /d/b; truncate -s 1T /big")
    assert (await sandbox.download("/d", tmp_path / "fits", limit=1_200_000)).files == 2
    with pytest.raises(TransferError, match="1,199,999"):
        await sandbox.download("/d", tmp_path / "out", limit=1_199_999)
    with pytest.raises(TransferError, match="1,000"):
        await asyncio.wait_for(sandbox.download("/big", tmp_path / "out2", limit=1000), 60)
    assert sum(f.stat().st_blocks for f in tmp_path.rglob("out*/*")) * 512 < 2_000_000


async def test_more_files_than_allowed_are_an_error(sandbox: Sandbox, tmp_path: Path):
    await sandbox.exec("mkdir -p /d/sub; touch /d/a /d/sub/b; ln /d/a /d/c; ln -s a /d/e")
    assert (await sandbox.download("/d", tmp_path / "fits", entries=5)).files == 4
    with pytest.raises(TransferError, match="more than 4 files"):
        await sandbox.download("/d", tmp_path / "out", entries=4)


async def test_holes_stay_holes_in_both_directions(sandbox: Sandbox, tmp_path: Path):
    make = "mkdir /d; cd /d; truncate -s 60M empty; printf x | dd of=mid bs=1 seek=20M conv=notrunc"
    await _output(sandbox, f"{make}; truncate -s 40M mid; cp mid whole; cat mid > /d/whole")
    got = await sandbox.download("/d", tmp_path / "out", limit=64 << 20)
    sizes = {path.name: path.stat() for path in (tmp_path / "out").iterdir()}
    assert {name: info.st_size >> 20 for name, info in sizes.items()} == {
        "empty": 60,
        "mid": 40,
        "whole": 40,
    }
    assert sizes["empty"].st_blocks == 0
    assert 0 < sizes["mid"].st_blocks * 512 < 1 << 20
    assert sizes["whole"].st_blocks * 512 >= 40 << 20
    assert 40 << 20 < got.bytes < 41 << 20
    assert (tmp_path / "out/mid").read_bytes() == (tmp_path / "out/whole").read_bytes()
    (tmp_path / "out/whole").unlink()
    assert (await sandbox.upload(tmp_path / "out", "/back")).bytes < 1 << 20
    assert (
        await _output(sandbox, "cmp /d/mid /back/mid; stat -c %s /back/*")
        == f"{60 << 20}\n{40 << 20}\n"
    )
    assert int((await _output(sandbox, "du -sk /back")).split()[0]) < 1024


async def test_hard_links_stay_one_file(sandbox: Sandbox, tmp_path: Path):
    await sandbox.exec(
        "mkdir -p /d/sub; head -c 1000000 /dev/urandom > /d/a; ln /d/a /d/b; ln /d/a /d/sub/c; "
        "ln -s a /d/l; ln /d/l /d/m; cp /d/a /d/other"
    )
    got = await sandbox.download("/d", tmp_path / "out", limit=2_000_000)
    assert (got.files, got.bytes, got.skipped) == (6, 2_000_000, ())
    out = tmp_path / "out"
    assert (out / "a").samefile(out / "b")
    assert (out / "a").samefile(out / "sub/c")
    assert not (out / "a").samefile(out / "other")
    assert (out / "a").read_bytes() == (out / "other").read_bytes()
    assert (await sandbox.upload(out, "/back")).bytes == 2_000_000
    links = await _output(sandbox, "stat -c %h /back/a /back/b /back/sub/c /back/other")
    assert links == "3\n3\n3\n1\n"


async def test_too_long_paths_are_skipped_and_the_rest_is_copied(sandbox: Sandbox, tmp_path: Path):
    dig = (
        "import os; os.makedirs('/d/ok'); open('/d/ok/file', 'w').close(); os.chdir('/d')\n"
        "for _ in range(30): os.mkdir(b'\\xff' + b'd' * 200); os.chdir(b'\\xff' + b'd' * 200)\n"
        "open('file', 'w').close()\n"
    )
    made = await sandbox.exec(["python3", "-c", dig])
    assert made.ok, made.complaint()
    got = await sandbox.download("/d", tmp_path / "out")
    (skipped,) = got.skipped
    assert skipped.isprintable()
    assert skipped.endswith("…: its path is too long")
    assert (tmp_path / "out/ok/file").exists()


async def test_a_missing_source_is_an_error(sandbox: Sandbox, tmp_path: Path):
    with pytest.raises(TransferError, match="/not/there"):
        await sandbox.download("/not/there", tmp_path / "out")
    with pytest.raises(TransferError, match="not-there"):
        await sandbox.upload(tmp_path / "not-there", "/t")
    assert not (tmp_path / "out").exists()


async def test_an_unwritable_target_is_an_error(sandbox: Sandbox, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TransferError):
        await sandbox.download("/etc/passwd", tmp_path / "file/below")
    with pytest.raises(TransferError):
        await sandbox.upload(tmp_path / "file", "/proc/sys/x")
    await sandbox.exec("mkdir /folder /folder/file")
    with pytest.raises(TransferError, match="file"):
        (tmp_path / "s").mkdir()
        (tmp_path / "s/file").write_text("x")
        await sandbox.upload(tmp_path / "s", "/folder")
    assert (await sandbox.exec("true")).ok


async def test_a_cancelled_transfer_leaves_no_process_and_no_thread(
    sandbox: Sandbox, tmp_path: Path
):
    with (tmp_path / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 30)
    await _output(sandbox, "fallocate -l 1G /big")
    for work in (
        sandbox.upload(tmp_path / "big", "/t"),
        sandbox.download("/big", tmp_path / "out"),
    ):
        running = asyncio.create_task(work)
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 60)
        assert (await sandbox.status()).processes == 0


async def test_a_sandbox_closed_during_a_transfer_ends_it(sandbox: Sandbox, tmp_path: Path):
    await _output(sandbox, "fallocate -l 1G /big")
    running = asyncio.create_task(sandbox.download("/big", tmp_path / "out"))
    await asyncio.sleep(0.1)
    await sandbox.close()
    with pytest.raises(Exception, match=r"closed|broke off") as caught:
        await asyncio.wait_for(running, 60)
    assert type(caught.value).__module__ == "plimsoll.core.errors"
    (tmp_path / "out").unlink(missing_ok=True)


EMPTIED = {
    "nothing": "true",
    "a file": "echo x > /e",
    "a link to a folder": "mkdir /kept; echo x > /kept/x; ln -s /kept /e",
    "a dangling link": "ln -s /nowhere /e",
    "an empty folder": "mkdir /e",
    "a full folder": "mkdir -p /e/a/b; echo x | tee /e/x /e/.hidden > /e/a/b/x",
    "a pipe": "mkfifo /e",
    "closed folders": "mkdir -p /e/a/b; echo x > /e/a/b/x; chmod 0 /e/a/b /e/a /e",
    "someone else's": "mkdir -p /e/a; touch /e/a/x; chown -R 1234:1234 /e; chmod 1700 /e",
    "a folder in use": "mkdir /e; cd /e; exec 3> /e/open; sleep 60 >/dev/null 2>&1 &",
    "names of all sorts": "mkdir /e; cd /e; touch -- -rf 'a b' $'new\\nline' $'\\xff'",
}


@pytest.mark.parametrize("kind", EMPTIED)
async def test_empty_replaces_anything_by_an_empty_folder(sandbox: Sandbox, kind: str):
    await sandbox.exec(EMPTIED[kind])
    await sandbox.empty("/e")
    assert await _output(sandbox, "stat -c '%F %a %U' /e; ls -A /e") == "directory 755 root\n"
    if kind == "a link to a folder":
        assert await _output(sandbox, "ls /kept") == "x\n"


async def test_empty_sets_the_mode_and_creates_parents(sandbox: Sandbox):
    await sandbox.empty("/a/b/c", mode=0o1777)
    assert await _output(sandbox, "stat -c %a /a/b/c") == "1777\n"


async def test_empty_removes_files_of_the_image(sandbox: Sandbox):
    await sandbox.empty("/usr/share/doc")
    assert await _output(sandbox, "ls -A /usr/share/doc") == ""


@pytest.mark.parametrize("plant", ["echo x > /logs", "ln -s /nowhere /logs", "ln -s logs /logs"])
async def test_empty_gets_past_obstacles_of_an_agent(sandbox: Sandbox, plant: str):
    await sandbox.exec(plant)
    await sandbox.empty("/logs/verifier")
    assert await _output(sandbox, "ls -A /logs/verifier") == ""


async def test_the_root_itself_is_not_emptied(sandbox: Sandbox):
    for path in ("/", "//", "/tmp/..", "."):
        with pytest.raises(TransferError):
            await sandbox.empty(path)
    assert (await sandbox.exec("true")).ok


DIG = """
import os
os.makedirs("/deep")
os.chdir("/deep")
for _ in range(3000):
    os.mkdir("d" * 20)
    os.chdir("d" * 20)
"""


async def test_a_tree_of_three_thousand_levels_is_emptied(sandbox: Sandbox):
    assert (await sandbox.exec(["python3", "-c", DIG])).ok
    await sandbox.empty("/deep")
    assert await _output(sandbox, "ls -A /deep; ls -A / | grep deep") == "deep\n"
