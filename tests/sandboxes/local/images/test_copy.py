"""COPY from the context behaves as in Docker."""

import os
import socket
from typing import Any

import pytest

Kit = Any

TREE = "cd / && find {} -printf '%P %y %m %l\\n' | sort"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/x/y.txt", "/x/y.txt"),
        ("/x/", "/x/a.txt"),
        ("/srv", "/srv/a.txt"),  # an existing folder
        ("b.txt", "/work/dir/b.txt"),
        (".", "/work/dir/a.txt"),
        ("..", "/work/a.txt"),
        ("sub/.", "/work/dir/sub/a.txt"),
        ("./new/", "/work/dir/new/a.txt"),
    ],
)
async def test_a_file_goes_where_docker_puts_it(kit: Kit, target: str, path: str):
    kit.write("a.txt", "hello")
    assert await kit.show(f"WORKDIR /work/dir\nCOPY a.txt {target}", f"cat {path}") == "hello"


async def test_the_content_of_a_folder_is_copied(kit: Kit):
    kit.write("dir/one.txt")
    kit.write("dir/.hidden")
    kit.write("dir/deep/two.sh", mode=0o755)
    (kit.context / "dir/empty").mkdir(mode=0o750)
    for source, target in (("dir", "/x"), ("dir/", "/y/"), ("/dir/.", "/z"), ("./dir", "/w")):
        tree = await kit.show(f"COPY {source} {target}", TREE.format(target))
        assert tree.split("\n")[1:] == [
            ".hidden f 644 ",
            "deep d 755 ",
            "deep/two.sh f 755 ",
            "empty d 750 ",
            "one.txt f 644 ",
        ]


async def test_a_folder_is_merged_into_an_existing_one(kit: Kit):
    kit.write("dir/new.txt", "new")
    kit.write("dir/both.txt", "theirs")
    shown = await kit.show(
        """
        RUN mkdir /x && echo old >/x/old.txt && echo mine >/x/both.txt
        COPY dir /x
        """,
        "cd /x && head *",
    )
    assert shown.split("\n") == [
        "==> both.txt <==", "theirs", "==> new.txt <==", "new", "==> old.txt <==", "old",
    ]  # fmt: skip


async def test_several_sources_go_into_a_folder(kit: Kit):
    kit.write("a.txt")
    kit.write("b.txt")
    kit.write("dir/c.txt")
    assert await kit.show("COPY a.txt b.txt dir /x/", "ls /x") == "a.txt\nb.txt\nc.txt"
    assert await kit.show("WORKDIR /y\nCOPY a.txt b.txt .", "ls /y") == "a.txt\nb.txt"


async def test_a_pattern_copies_its_matches(kit: Kit):
    for name in ("a1.py", "a2.py", "b.py", ".hid.py", "sub/c.py", "sub/deep/d.py", "lit[1].txt"):
        kit.write(name)
    image = await kit.build(
        """
        COPY a?.py /q/
        COPY *.py /star/
        COPY */*.py /sub/
        COPY a[^1].py /set/
        COPY lit[[]1].txt /lit/
        COPY **.py /twostars/
        """
    )
    assert await kit.see(image, "ls -A /q /star /sub /set /lit /twostars | paste -sd' '") == (
        "/lit: lit[1].txt  /q: a1.py a2.py  /set: a2.py  /star: .hid.py a1.py a2.py b.py  "
        "/sub: c.py  /twostars: .hid.py a1.py a2.py b.py"
    )


async def test_a_pattern_may_match_nothing_but_a_name_must_exist(kit: Kit):
    kit.write("package.json")
    assert await kit.show("COPY package.json lock.json* /x/", "ls /x") == "package.json"
    assert await kit.refused("RUN true\nCOPY lock.json /x/") == (
        "Dockerfile:3: lock.json is not in the build context"
    )


async def test_an_invalid_pattern_is_an_error(kit: Kit):
    assert await kit.refused("COPY a[ /x/") == "Dockerfile:2: invalid pattern: a["


async def test_names_with_spaces_and_odd_bytes_are_copied(kit: Kit):
    kit.write("my file.txt", "1")
    kit.write("it's.txt", "2")
    kit.write(os.fsdecode(b"odd\xff.txt"))
    image = await kit.build('COPY ["my file.txt", "/a b/"]\nCOPY "my file.txt" /q/\nCOPY . /all/')
    assert await kit.see(image, "cat '/a b/my file.txt' '/q/my file.txt'") == "11"
    assert await kit.see(image, r"ls /all/odd$'\377'.txt /all/it*s.txt | wc -l") == "2"


async def test_links_in_a_folder_stay_links(kit: Kit):
    kit.write("dir/real.txt", "real")
    for name, to in (("near", "real.txt"), ("far", "/etc/passwd"), ("gone", "nowhere")):
        (kit.context / "dir" / name).symlink_to(to)
    (kit.context / "dir/folder").symlink_to("..")
    assert await kit.show("COPY dir /x", TREE.format("/x")) == (
        " d 755 \nfar l 777 /etc/passwd\nfolder l 777 ..\ngone l 777 nowhere\n"
        "near l 777 real.txt\nreal.txt f 644 "
    )


async def test_a_link_that_is_the_source_is_followed(kit: Kit):
    real = kit.write("dir/real.txt", "one")
    (kit.context / "link.txt").symlink_to("dir/real.txt")
    (kit.context / "linked").symlink_to("dir")
    text = "COPY link.txt /x/\nCOPY linked /y"
    assert await kit.show(text, "cd /x && find -type f -printf '%p ' && cat *") == "./link.txt one"
    real.write_text("two")
    assert await kit.show(text, "cat /x/link.txt /y/real.txt") == "twotwo"


async def test_nothing_outside_the_context_is_copied(kit: Kit):
    (kit.context.parent / "secret").write_text("s")
    (kit.context / "out").symlink_to("../secret")
    (kit.context / "above").symlink_to("..")
    (kit.context / "loop").symlink_to("loop")
    for source, expected in (
        ("../secret", "../secret is not in the build context"),
        ("/secret", "/secret is not in the build context"),
        ("out", "out is a link that leads out of the build context"),
        ("o*", "out is a link that leads out of the build context"),
        ("above/secret", "above/secret is a link that leads out of the build context"),
        ("above/s*", "above/secret is a link that leads out of the build context"),
        ("loop", "loop is not in the build context"),
    ):
        assert await kit.refused(f"COPY {source} /x/") == f"Dockerfile:2: {expected}"
    kit.write("inside")
    assert await kit.show("COPY ../../inside /x/", "ls /x") == "inside"


async def test_dockerignore_excludes_files(kit: Kit):
    kit.write(".dockerignore", "# no\n*.log\nnode_modules\n!keep.log\ndata/*\n!data/seed\n")
    for name in ("a.py", "b.log", "keep.log", "node_modules/m/i.js", "data/big", "data/seed/s"):
        kit.write(name)
    shown = await kit.show("WORKDIR /app\nCOPY . .", "find . -type f | sort")
    assert shown == "./.dockerignore\n./Dockerfile\n./a.py\n./data/seed/s\n./keep.log"
    assert await kit.refused("COPY b.log /x") == (
        "Dockerfile:2: b.log is excluded from the build context by .dockerignore"
    )
    assert await kit.show("COPY *.log /x/", "ls /x") == "keep.log"


async def test_a_file_of_an_excluded_folder_can_be_included(kit: Kit):
    kit.write(".dockerignore", "*\n!src/deep/keep.py\n")
    kit.write("src/deep/keep.py")
    kit.write("src/other.py")
    assert await kit.show("COPY src /x", "find /x -type f") == "/x/deep/keep.py"


async def test_a_dockerfile_can_have_its_own_ignore_rules(kit: Kit):
    kit.write(".dockerignore", "a")
    kit.write("Dockerfile.dockerignore", "b\nDockerfile*\n.dockerignore")
    kit.write("a")
    kit.write("b")
    assert await kit.show("COPY . /x", "ls -A /x") == "a"


async def test_copied_files_belong_to_root_whatever_the_user(kit: Kit):
    path = kit.write("a.txt")
    os.chown(path, 1234, 1234)
    shown = await kit.show("USER daemon\nCOPY a.txt /n/x", "stat -c '%U:%G %a' /n /n/x")
    assert shown == "root:root 755\nroot:root 644"


async def test_chown_and_chmod_apply_to_folders(kit: Kit):
    kit.write("dir/sub/a.txt")
    image = await kit.build(
        """
        ARG who=daemon
        ARG how=750
        COPY --chown=$who --chmod=$how dir /new/x
        COPY --chown=55 dir /number
        COPY --chown=1:bin dir /both
        """
    )
    for path, owner, mode in (
        ("/new /new/x", "1:1", "755"),
        ("/new/x/sub /new/x/sub/a.txt", "1:1", "750"),
        ("/number /number/sub", "55:55", "755"),
        ("/both/sub/a.txt", "1:2", "644"),
    ):
        stats = (await kit.see(image, f"stat -c '%u:%g %a' {path}")).split("\n")
        assert set(stats) == {f"{owner} {mode}"}


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--chmod=u+x", "--chmod takes a number like 0755, not u+x"),
        ("--chmod=799", "--chmod takes a number like 0755, not 799"),
        ("--chmod=75", "--chmod takes a number like 0755, not 75"),
        ("--chown=nobodyatall", "the sandbox has no user 'nobodyatall'"),
        ("--parents", "the local backend does not support --parents"),
        ("--exclude=*.md", "the local backend does not support --exclude"),
    ],
)
async def test_an_unsupported_flag_is_an_error_with_its_line(kit: Kit, flag: str, expected: str):
    kit.write("a.txt")
    message = await kit.refused(f"COPY {flag} a.txt /x")
    assert message.startswith("Dockerfile:2: ")
    assert message.endswith(expected)


async def test_exact_and_special_modes_are_kept(kit: Kit):
    kit.write("dir/sub/run", mode=0o4755)
    text = "COPY --chmod=555 dir /x\nCOPY dir /y\nCOPY --chmod=1700 <<EOF /z\nEOF"
    shown = await kit.show(text, "stat -c %a /x/sub /x/sub/run /y/sub/run /z | paste -sd' '")
    assert shown == "555 555 4755 1700"


async def test_a_folder_does_not_replace_a_link(kit: Kit):
    kit.write("rootfs/there/tool")
    text = "RUN mkdir /real && touch /real/kept && ln -s real /there\nCOPY {} {}"
    message = await kit.refused(text.format("rootfs", "/"))
    assert message.startswith("Dockerfile:3: ")
    assert message.endswith("there: a file or a link is in the place of the folder")
    assert await kit.show(text.format("rootfs/there", "/there"), "ls /real") == "kept\ntool"


async def test_a_file_and_a_folder_do_not_replace_each_other(kit: Kit):
    kit.write("file")
    kit.write("dir/etc")
    assert (await kit.refused("COPY dir /")).startswith("Dockerfile:2: ")
    assert (await kit.refused("RUN touch /x\nCOPY dir /x")).startswith("Dockerfile:3: ")


async def test_a_device_in_the_context_is_an_error(kit: Kit):
    os.mkfifo(kit.context / "pipe")
    expected = "cannot be copied: pipe: neither a file, a folder nor a link"
    assert await kit.refused("COPY . /x") == f"Dockerfile:2: {expected}"
    with socket.socket(socket.AF_UNIX) as listener:
        (kit.context / "pipe").unlink()
        listener.bind(str(kit.context / "socket"))
        assert "cannot be copied: socket" in await kit.refused("COPY . /x")


async def test_variables_in_paths_are_expanded(kit: Kit):
    kit.write("a-1.txt", "1")
    text = "ARG v=1\nENV to='/my dir'\nCOPY a-${v}.txt ${to}/$v.txt\n"
    assert await kit.show(text, "cat '/my dir/1.txt'") == "1"
