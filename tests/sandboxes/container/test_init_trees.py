"""File trees in and out of a sandbox by its init, and emptied folders."""

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from init_client import DATA, EMPTY, KILL, PACK, STATUS, UNPACK, Answer, Init, fields, started
from plimsoll.sandboxes import trees

END_RECORD = b"e 0 0 0 0 0 0 0\n"
DIG = """
import os
os.makedirs("/deep")
os.chdir("/deep")
for _ in range(3000):
    os.mkdir("d" * 20)
    os.chdir("d" * 20)
"""


@pytest.fixture
def init(tmp_path: Path) -> Iterator[Init]:
    (tmp_path / "root").mkdir()
    with started(tmp_path / "root") as running:
        yield running


def _record(kind: str, name: bytes = b"", extra: bytes = b"", mode: int = 0o644) -> bytes:
    head = f"{kind} {mode:o} 0 0 0 0 {len(name)} {len(extra)}\n".encode()
    return head + name + extra


def _upload(init: Init, stream: bytes, target: str) -> Answer:
    number = init.ask(UNPACK, fields(target))
    for at in range(0, len(stream), 60_000):
        init.send(DATA, number, stream[at : at + 60_000])
        while at > 200_000 and init.frame()[1] != number:  # credit
            pass
    init.send(DATA, number)
    return init.until_end(number)


def _packed(source: Path) -> bytes:
    stream = io.BytesIO()
    trees.pack(str(source), stream)
    return stream.getvalue()


def test_a_tree_survives_upload_and_download(init: Init, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub/deeper").mkdir(parents=True)
    (source / "sub").chmod(0o711)
    (source / "file").write_bytes(os.urandom(100_000))
    os.utime(source / "file", ns=(1, -1_500_000_000))
    Path(os.fsdecode(os.fsencode(source) + b"/not-\xff\n")).write_bytes(b"x")
    (source / "sub/up").symlink_to("../file")
    (source / "sub/out").symlink_to("../../file")
    os.mkfifo(source / "pipe")
    sent = _upload(init, _packed(source), "/new/target")
    assert (sent.words["files"], sent.words["bytes"]) == ("3", "100001")
    skipped = [value for key, value in sent.pairs if key == "skipped"]
    assert skipped == [
        "pipe: neither a file, a folder nor a link",
        "sub/out: a link to ../../file, which may lead out of the folder",
    ]
    got = init.until_end(init.ask(PACK, fields("/new/target")))
    assert got.words == {"done": "1"}
    summary = trees.unpack(io.BytesIO(bytes(got.out)), str(tmp_path / "back"))
    assert (summary["files"], summary["bytes"], summary["skipped"]) == (3, 100_001, [])
    back = tmp_path / "back"
    assert (back / "file").read_bytes() == (source / "file").read_bytes()
    assert (back / "file").stat().st_mtime_ns == -1_500_000_000
    assert (back / "sub").stat().st_mode & 0o777 == 0o711
    assert (back / "sub/up").readlink() == Path("../file")


def test_a_file_is_uploaded_to_a_path_or_into_a_folder(init: Init, tmp_path: Path):
    (tmp_path / "a").write_text("x")
    for target, found in (("/b", "/b"), ("/tmp", "/tmp/a"), ("/new/", "/new/a")):
        assert _upload(init, _packed(tmp_path / "a"), target).words["files"] == "1"
        assert init.said(f"cat {found}") == "x"


@pytest.mark.parametrize(
    "stream",
    {
        "nothing": b"",
        "cut": _record("d")[:5],
        "cut content": b"f 644 0 0 0 99 0 0\nabc",
        "no root": _record("d", b"x") + END_RECORD,
        "two roots": _record("d") * 2 + END_RECORD,
        "up": _record("d") + _record("d", b"../x") + END_RECORD,
        "up within": _record("d") + _record("d", b"a/../../x") + END_RECORD,
        "absolute": _record("d") + _record("d", b"/x") + END_RECORD,
        "a dot": _record("d") + _record("d", b"./x") + END_RECORD,
        "a nul": _record("d") + _record("d", b"a\0b") + END_RECORD,
        "only an end": END_RECORD,
        "a long line": b"d " + b"1" * 1000,
        "a long name": b"d 755 0 0 0 0 99999999 0\n",
        "a negative size": b"d 755 0 0 0 0 0 0\nf 644 0 0 0 -1 1 0\nx" + END_RECORD,
        "no numbers": b"d a b c d e f g\n",
    }.items(),
    ids=lambda stream: stream[0],
)
def test_an_invalid_stream_writes_nothing_outside(init: Init, stream: tuple[str, bytes]):
    before = init.said("ls -A / /tmp")
    assert "error" in _upload(init, stream[1], "/tmp/t").words
    assert init.said("rm -rf /tmp/t; ls -A / /tmp") == before


def test_links_in_the_target_are_replaced(init: Init, tmp_path: Path):
    (tmp_path / "s/etc").mkdir(parents=True)
    (tmp_path / "s/etc/passwd").write_text("new")
    (tmp_path / "s/file").write_text("new")
    init.said("mkdir /t; ln -s /etc /t/etc; ln -s /etc/group /t/file")
    assert _upload(init, _packed(tmp_path / "s"), "/t").words["files"] == "2"
    assert "new" not in init.said("cat /etc/passwd /etc/group")
    assert init.said("cat /t/etc/passwd /t/file; find /t -type l") == "newnew"


def test_a_long_list_of_skipped_files_is_truncated(init: Init):
    links = b"".join(_record("l", b"n%d" % n, b"/" + b"\xff\x01\xc3\xa9" * 500) for n in range(50))
    done = _upload(init, _record("d") + links + END_RECORD, "/t")
    skipped = [value for key, value in done.pairs if key == "skipped"]
    assert len(skipped) == 21
    assert skipped[-1] == "and 30 more"
    assert skipped[0].startswith(r"n0: a link to /\xff\x01é\xff")


def test_an_upload_without_input_can_be_killed(init: Init):
    number = init.ask(UNPACK, fields("/t"))
    init.send(DATA, number, _record("d"))
    init.frame()
    init.send(KILL, number)
    assert init.until_end(number).words == {"signal": "9"}
    assert init.request(STATUS)["processes"] == "0"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("/not/there", "No such file"),
        ("/dev/zero", "neither"),
        ("/pipe", "neither"),
        ("/link", "a link to /etc/passwd"),
        ("/up", "a link to ../etc"),
    ],
)
def test_an_unpackable_path_reports_the_reason(init: Init, source: str, why: str):
    init.said("mkfifo /pipe; ln -s /etc/passwd /link; ln -s ../etc /up")
    error = init.request(PACK, source)["error"]
    assert error.startswith(source)
    assert why in error


def test_packing_a_large_file_can_be_killed(init: Init):
    init.said("head -c 256M /dev/zero > /big")
    number = init.ask(PACK, fields("/big"))
    for _ in range(200):
        init.frame()
    init.send(KILL, number)
    assert init.until_end(number).words == {"signal": "9"}


def test_sparse_files_and_hard_links_survive(init: Init, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    with (source / "holes").open("wb") as file:
        for at in (0, 5 << 20, 30 << 20):
            file.seek(at)
            file.write(os.urandom(70_000))
        file.truncate(1 << 40)
    (source / "a").write_bytes(b"x" * 100)
    (source / "sub/b").hardlink_to(source / "a")
    packed = _packed(source)
    assert len(packed) < 1 << 20
    assert _upload(init, packed, "/t").words["files"] == "3"
    assert init.said("stat -c '%s %h' /t/holes /t/sub/b").split() == [str(1 << 40), "1", "100", "2"]
    got = init.until_end(init.ask(PACK, fields("/t")))
    assert len(got.out) < 1 << 20
    trees.unpack(io.BytesIO(bytes(got.out)), str(tmp_path / "back"))
    back = tmp_path / "back"
    assert (back / "a").samefile(back / "sub/b")
    assert (back / "holes").stat().st_blocks * 512 < 1 << 20
    with (source / "holes").open("rb") as first, (back / "holes").open("rb") as second:
        assert first.read(40 << 20) == second.read(40 << 20)
    assert (back / "holes").stat().st_size == 1 << 40


@pytest.mark.parametrize(
    "content",
    [b"5 9\n123456789", b"-1 2\n12", b"4 2\n120 1\n1", b"x y\n", b"1 -1\n", b"9" * 600],
)
def test_data_out_of_bounds_is_refused(init: Init, tmp_path: Path, content: bytes):
    stream = _record("d") + b"h 644 0 0 0 10 1 0\nh" + content + END_RECORD
    assert "error" in _upload(init, stream, "/t").words
    with pytest.raises(trees.TreeError):
        trees.unpack(io.BytesIO(stream), str(tmp_path / "out"))


@pytest.mark.parametrize("extra", [b"../etc/passwd", b"/etc/passwd", b"link", b"none", b"", b"sub"])
def test_files_outside_cannot_be_hard_linked(init: Init, tmp_path: Path, extra: bytes):
    start = _record("d") + _record("d", b"sub") + _record("l", b"link", b"sub")
    stream = start + _record("k", b"name", extra) + END_RECORD
    _upload(init, stream, "/t")
    assert init.said("ls -A /t") == "link\nsub\n"
    with contextlib.suppress(trees.TreeError):
        trees.unpack(io.BytesIO(stream), str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sub", "link"}


def test_a_tree_of_three_thousand_levels_is_truncated_and_can_be_emptied(
    init: Init, tmp_path: Path
):
    assert init.until_end(init.begin("python3", "-c", DIG)).words == {"exit": "0"}
    got = init.until_end(init.ask(PACK, fields("/deep")))
    assert got.words == {"done": "1"}
    summary = trees.unpack(io.BytesIO(bytes(got.out)), str(tmp_path / "back"))
    (skipped,) = summary["skipped"]
    assert skipped.startswith("d" * 20 + "/")
    assert skipped.endswith("…: its path is too long")
    assert init.request(EMPTY, "/deep", "755") == {"done": "1"}
    assert init.said("ls -A /deep; ls -A / | grep deep") == "deep\n"


def test_a_tree_as_deep_as_a_path_may_be_is_packed(init: Init, tmp_path: Path):
    code = 'import os\nfor name in ["/d", *"a" * 1500]:\n os.mkdir(name); os.chdir(name)'
    assert init.until_end(init.begin("python3", "-c", code)).words == {"exit": "0"}
    got = init.until_end(init.ask(PACK, fields("/d")))
    assert got.words == {"done": "1"}
    try:
        assert trees.unpack(io.BytesIO(bytes(got.out)), str(tmp_path / "back"))["files"] == 0
        assert _depth(tmp_path / "back") == 1500
    finally:  # too deep for pytest's removal of temporary folders
        subprocess.run(["rm", "-rf", tmp_path / "back"], check=True)


def _depth(folder: Path) -> int:
    """The depth of nested folders named `a`."""
    depth, at = 0, os.open(folder, os.O_RDONLY)
    while True:
        try:
            deeper = os.open("a", os.O_RDONLY, dir_fd=at)
        except FileNotFoundError:
            return depth
        finally:
            os.close(at)
        depth, at = depth + 1, deeper


@pytest.mark.parametrize("path", ["/", "//", "/tmp/..", "/tmp/../etc", ".", "etc", "/.."])
def test_protected_paths_are_not_emptied(init: Init, path: str):
    before = init.said("ls -A / /etc")
    assert "cannot be emptied" in init.request(EMPTY, path, "755")["error"]
    assert init.said("ls -A / /etc") == before


def test_emptying_replaces_anything_at_the_path(init: Init):
    init.said("ln -s /etc /a; mkdir /kept; echo x > /kept/x; mkdir /b; ln -s /kept /b/c")
    assert init.request(EMPTY, "/a/b", "1777") == {"done": "1"}
    assert init.request(EMPTY, "/b/", "700") == {"done": "1"}
    assert init.said("ls /etc /kept; stat -c '%a %F' /a /a/b /b") == (
        "/etc:\ngroup\npasswd\n\n/kept:\nx\n755 directory\n1777 directory\n700 directory\n"
    )


def test_a_mount_that_cannot_be_emptied_reports_the_reason(init: Init):
    assert init.request(EMPTY, "/usr/bin", "755")["error"].startswith("/usr/bin: ")
    assert init.said("echo on") == "on\n"


def test_a_stalled_transfer_does_not_block_others(init: Init):
    waiting = init.ask(UNPACK, fields("/t"))
    assert init.said("echo on") == "on\n"
    init.send(DATA, waiting)
    assert "broke off" in init.until_end(waiting).words["error"]
