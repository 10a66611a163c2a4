"""The tree stream: its exact format, and untrusted streams."""

import io
import os
from pathlib import Path

import pytest

from plimsoll.sandboxes.trees import Rules, TreeError, pack, unpack

ROOT = b"d 755 0 0 0 0 0 0\n"
END = b"e 0 0 0 0 0 0 0\n"


def _record(kind: str, name: bytes, extra: bytes = b"", content: bytes = b"") -> bytes:
    head = f"{kind} 644 0 0 0 {len(content)} {len(name)} {len(extra)}\n".encode()
    return head + name + extra + content


def _unpack(stream: bytes, target: Path, **rules: int) -> dict[str, object]:
    return unpack(io.BytesIO(stream), str(target), Rules(**rules))


def test_the_stream_format_is_exact(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir(mode=0o755)
    (source / "ü").write_bytes(b"content")
    (source / "ü").chmod(0o640)
    (source / "z").symlink_to("ü")
    os.utime(source / "ü", ns=(5, -1_500_000_007))
    os.utime(source / "z", ns=(7, 7), follow_symlinks=False)
    os.utime(source, ns=(9, 9))
    out = io.BytesIO()
    pack(str(source), out)
    who = f"{os.getuid()} {os.getgid()}"
    assert out.getvalue().decode() == (
        f"d 755 {who} 9 0 0 0\n"
        f"l 777 {who} 7 0 1 2\nzü"
        f"f 640 {who} -1500000007 7 2 0\nücontent"
        "e 0 0 0 0 0 0 0\n"
    )


def test_a_single_file_contains_its_name(tmp_path: Path):
    (tmp_path / "name").write_bytes(b"x")
    os.utime(tmp_path / "name", ns=(1, 1))
    (tmp_path / "name").chmod(0o600)
    out = io.BytesIO()
    pack(str(tmp_path / "name"), out)
    who = f"{os.getuid()} {os.getgid()}"
    assert out.getvalue() == f"f 600 {who} 1 1 0 4\nnamex".encode() + END
    (tmp_path / "folder").mkdir()
    _unpack(out.getvalue(), tmp_path / "folder")
    assert (tmp_path / "folder/name").read_bytes() == b"x"


def test_every_valid_file_name_is_copied(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    names = [b"\xff\xfe", b"new\nline", b" ", b"-", b"a b", b"\x01", "ünï".encode()]
    for name in names:
        Path(source, os.fsdecode(name)).write_bytes(name)
    out = io.BytesIO()
    pack(str(source), out)
    assert _unpack(out.getvalue(), tmp_path / "out")["files"] == len(names)
    found = {os.fsencode(path.name): path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == {name: name for name in names}


@pytest.mark.parametrize(
    "name", [b"../x", b"/x", b"a/../../x", b"..", b".", b"a//x", b"a/", b"a\0b", b"./x"]
)
@pytest.mark.parametrize("kind", ["f", "d", "l"])
def test_no_name_leaves_the_target(tmp_path: Path, name: bytes, kind: str):
    (tmp_path / "out").mkdir()
    with pytest.raises(TreeError, match="leaves the target"):
        _unpack(ROOT + _record(kind, name, b"to") + END, tmp_path / "out")
    assert not (tmp_path / "x").exists()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_the_stream_is_not_followed(tmp_path: Path):
    stream = ROOT + _record("l", b"sub", b"there") + _record("f", b"sub/x", content=b"in")
    (tmp_path / "out/there").mkdir(parents=True)
    _unpack(stream + END, tmp_path / "out")
    assert not (tmp_path / "out/there/x").exists()
    assert (tmp_path / "out/sub/x").read_bytes() == b"in"


@pytest.mark.parametrize("as_image", [False, True])
def test_set_id_and_sticky_bits_are_dropped_unless_the_tree_is_an_image(
    tmp_path: Path, as_image: bool
):
    """A program of an agent would run with the rights of the host's user, for everyone."""
    stream = ROOT + b"d 7755 0 0 0 0 3 0\nsub" + b"f 6755 0 0 0 2 4 0\ntoolok" + END
    _unpack(stream, tmp_path / "out", as_image=as_image)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "out").iterdir()}
    expected = {"sub": 0o7755, "tool": 0o6755} if as_image else {"sub": 0o755, "tool": 0o755}
    assert modes == expected


@pytest.mark.parametrize("to", [b"/etc", b"..", b"a/../..", b"\0", b"../x"])
def test_a_link_that_leads_out_is_skipped_and_listed(tmp_path: Path, to: bytes):
    result = _unpack(ROOT + _record("l", b"link", to) + END, tmp_path / "out")
    assert len(result["skipped"]) == 1  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


WHOLE = ROOT + _record("f", b"file", content=b"content") + END


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_a_truncated_stream_is_an_error(tmp_path: Path, at: int):
    with pytest.raises(TreeError, match=r"broke off|empty"):
        _unpack(WHOLE[:at], tmp_path / "out")


@pytest.mark.parametrize(
    "stream",
    [
        END,
        b"garbage\n",
        b'{"t":"end"}\n',
        b"x" * 1000,
        b"\xff\xff\n",
        b"f 644 0 0 0 -1 1 0\nx",
        b"f 644 0 0 0 1 -1 0\nx",
        b"f 644 0 0 0 1 99999999999 0\nx",
        b"f 644 0 0 0 1 0 99999999999\nx",
        b"f 999 0 0 0 0 1 0\nx",
        b"f 644 0 0 0 0 1\nx",
        b"f 644 0 0 0 0 1 0 0\nx",
        ROOT + ROOT + END,
        _record("l", b"", b"/etc") + END,
        _record("f", b"early") + END,
        ROOT + b"f 644 0 0 " + b"9" * 60 + b" 0 1 0\nx" + END,
    ],
)
def test_an_invalid_stream_is_an_error(tmp_path: Path, stream: bytes):
    with pytest.raises(TreeError):
        _unpack(stream, tmp_path / "out")


def test_a_size_over_the_limit_is_an_error_before_any_content(tmp_path: Path):
    stream = ROOT + b"f 644 0 0 0 1099511627776 1 0\nx"
    with pytest.raises(TreeError, match="1,000"):
        _unpack(stream, tmp_path / "out", limit=1000)
    assert list((tmp_path / "out").iterdir()) == []
