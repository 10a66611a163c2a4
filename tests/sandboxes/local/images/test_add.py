"""ADD unpacks archives, and fetches nothing."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

Kit = Any


def archive(*members: tuple[str, str, str], kind: str = "gz") -> bytes:
    """Write a tar file of (name, type, content or link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{kind}") as tar:
        for name, type_, content in members:
            info = tarfile.TarInfo(name)
            info.type = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE,
                         "h": tarfile.LNKTYPE, "c": tarfile.CHRTYPE}[type_]  # fmt: skip
            info.mode = 0o755 if type_ == "d" else 0o640
            info.mtime = 1_000_000_000
            info.uid = 1234
            if type_ == "f":
                info.size = len(content)
            elif type_ in "lh":
                info.linkname = content
            tar.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


@pytest.mark.parametrize("kind", ["", "gz", "bz2", "xz"])
async def test_an_archive_is_unpacked(kit: Kit, kind: str):
    data = archive(("./d", "d", ""), ("d/a", "f", "hello"), ("d/l", "l", "/etc/passwd"),
                   ("d/h", "h", "d/a"), kind=kind)  # fmt: skip
    kit.write("files.whatever", data)
    shown = await kit.show(
        "ADD files.whatever /x", "cd /x && find d -printf '%p %y %m %U %l\\n'|sort"
    )
    assert shown == "d d 755 1234 \nd/a f 640 1234 \nd/h f 640 1234 \nd/l l 777 1234 /etc/passwd"


async def test_files_of_an_archive_can_get_an_owner(kit: Kit):
    kit.write("a.tar", archive(("d/a", "f", "hello")))
    shown = await kit.show("ADD --chown=daemon --chmod=600 a.tar /x/", "stat -c '%U %a' /x/d/a")
    assert shown == "daemon 600"


async def test_copy_does_not_unpack_and_add_copies_other_files(kit: Kit):
    kit.write("a.tar.gz", archive(("a", "f", "a")))
    kit.write("zeros.bin", bytes(2048))
    kit.write("text.gz", b"\x1f\x8bnot really")
    kit.write("empty.tar", b"")
    image = await kit.build("COPY a.tar.gz /c/\nADD zeros.bin text.gz empty.tar /a/")
    assert await kit.see(image, "ls /c /a | paste -sd' '") == (
        "/a: empty.tar text.gz zeros.bin  /c: a.tar.gz"
    )
    assert await kit.see(image, "stat -c %s /a/zeros.bin") == "2048"


async def test_an_archive_cannot_reach_out_of_its_folder(kit: Kit, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    kit.write("up.tar", archive(("../../up", "f", "u"), (f"{out}/abs", "f", "a"), kind=""))
    shown = await kit.show("ADD up.tar /x/", "cd /x && find . -type f -printf '%f '")
    assert sorted(shown.split()) == ["abs", "up"]
    kit.write("link.tar", archive(("l", "l", str(out)), ("l/f", "f", "f"), kind=""))
    message = await kit.refused("ADD link.tar /x/")
    assert message.startswith("Dockerfile:2: link.tar cannot be unpacked: ")
    assert list(out.iterdir()) == []


async def test_a_very_deep_archive_is_unpacked_or_refused(kit: Kit):
    kit.write("deep.tar", archive(("d/" * 300 + "f", "f", "x")))
    shown = await kit.show("ADD deep.tar /x", "find /x -type f | tr -cd / | wc -c")
    assert shown == "302"
    kit.write("deep.tar", archive(("d/" * 3000 + "f", "f", "x")))
    assert "deep.tar cannot be unpacked" in await kit.refused("ADD deep.tar /x")


async def test_an_archive_with_a_device_or_a_truncated_one_is_an_error(kit: Kit):
    kit.write("device.tar", archive(("null", "c", "")))
    assert await kit.refused("ADD device.tar /x/") == (
        "Dockerfile:2: device.tar cannot be unpacked: null is a device or a pipe"
    )
    whole = archive(("a", "f", "0123456789" * 5000), ("b", "f", "b"), kind="")
    kit.write("torn.tar", whole[:20_000])
    assert "torn.tar cannot be unpacked" in await kit.refused("ADD torn.tar /x/")


@pytest.mark.parametrize("url", ["https://example.org/a.tgz", "git@example.org:a/b.git"])
async def test_add_fetches_nothing(kit: Kit, url: str):
    assert await kit.refused(f"RUN true\nADD {url} /x") == (
        f"Dockerfile:3: {url} is not fetched; put the file in the build context"
    )
