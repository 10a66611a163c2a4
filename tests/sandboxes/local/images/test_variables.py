"""ENV, ARG, WORKDIR and USER, in the build and in sandboxes on the image."""

import os
from typing import Any

import pytest

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.protocol import ImageSource

Kit = Any


async def test_env_forms(kit: Kit):
    text = r"""
        FROM any
        ENV one=1 two="2 and more" three='$one' four=a\ b
        ENV old the rest of   the line
        ENV PATH=/my/bin:$PATH
        ENV one=changed same=$one
        ENV empty= unset="${nothing}x"
        RUN printf '%s|' "$one" "$two" "$three" "$four" "$old" "$same" "$empty" "$unset" >/x
        """
    image = await kit.build(text)
    values = "changed|2 and more|$one|a b|the rest of   the line|1||x|"
    assert await kit.see(image, "cat /x") == values
    assert await kit.see(image, 'printf "%s|" "$one" "$two" "$PATH"') == (
        "changed|2 and more|/my/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin|"
    )


async def test_arg_applies_to_the_build_only(kit: Kit):
    text = """
        ARG base=any
        ARG version=1
        ARG unset
        FROM ${base}:$version AS x
        RUN echo "[$version]" >/x
        ARG version
        ARG other=2 more=$version
        ARG unset
        RUN echo "$version $other $more ${unset-not set}" >>/x
        ENV other=env
        ARG other=3
        RUN echo "$other" >>/x
        """
    image = await kit.build(text)
    assert await kit.see(image, "cat /x") == "[]\n1 2 1 not set\nenv"
    assert await kit.see(image, "echo [$version] $other") == "[] env"
    assert "any:1 is not under [local] roots" in kit.backend.warnings[0]


async def test_arg_reaches_stages_based_on_its_stage(kit: Kit):
    text = "FROM any AS a\nARG x=1\nFROM a AS b\nRUN echo $x >/x\nFROM any\nCOPY --from=b /x /\n"
    image = await kit.build(f"{text}RUN echo [$x] >>/x")
    assert await kit.see(image, "cat /x") == "1\n[]"


async def test_platform_args_are_predefined(kit: Kit):
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    text = """
        FROM --platform=$BUILDPLATFORM any
        ARG TARGETARCH
        ARG TARGETOS
        ENV a=$TARGETOS/$TARGETARCH
        """
    assert (await kit.build(text)).env["a"] == f"linux/{machine}"
    other = "arm64" if machine == "amd64" else "amd64"
    message = await kit.refused(f"FROM --platform=linux/{other} any")
    assert message == (
        f"Dockerfile:1: platform linux/{other} cannot run on this linux/{machine} host"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM $none", "Dockerfile:1: FROM $none is empty after expansion"),
        ("FROM --color=red any", "Dockerfile:1: the local backend does not support --color"),
        ('FROM any\nENV a="${b:?must be there}"', "Dockerfile:2: b is not set: must be there"),
        ('FROM any\nENV a="b', 'Dockerfile:2: the quote " is not closed'),
        ("FROM any\nENV a", "Dockerfile:2: expected name=value, got a"),
        ("RUN FROM any", "Dockerfile:1: RUN before FROM"),
        ("# FROM any", "Dockerfile: no FROM instruction"),
    ],
)
async def test_a_mistake_names_its_line(kit: Kit, text: str, expected: str):
    assert (await kit.refused(text)).startswith(expected)


async def test_a_binary_dockerfile_is_an_error(kit: Kit):
    file = kit.write("Dockerfile", b"FROM any\xff")
    with pytest.raises(BuildError, match=r"Dockerfile: not UTF-8 text$"):
        await kit.backend.build(ImageSource(dockerfile=file))
    with pytest.raises(BuildError, match=r"nothere: No such file or directory$"):
        await kit.backend.build(ImageSource(dockerfile=file.with_name("nothere")))


async def test_workdir_is_relative_and_created(kit: Kit):
    text = """
        FROM any
        ENV sub=c
        WORKDIR /a
        WORKDIR b
        WORKDIR $sub/../d
        RUN pwd >/x
        """
    image = await kit.build(text)
    assert image.workdir == "/a/b/d"
    assert await kit.see(image, "pwd; cat /x; stat -c '%U %a' .") == "/a/b/d\n/a/b/d\nroot 755"


async def test_workdir_belongs_to_the_user_and_keeps_existing_folders(kit: Kit):
    text = """
        FROM any
        RUN mkdir -m 700 /old
        USER daemon
        WORKDIR /new/dir
        RUN touch here
        WORKDIR /old
        WORKDIR /
        """
    image = await kit.build(text)
    shown = await kit.see(image, "stat -c '%U %a' /new /new/dir /old")
    assert shown == "daemon 755\ndaemon 755\nroot 700"


async def test_workdir_on_a_file_is_an_error(kit: Kit):
    message = await kit.refused("RUN touch /x\nWORKDIR /x/y")
    assert message.startswith("Dockerfile:3: ")


async def test_sandboxes_start_with_the_images_env_folder_and_user(kit: Kit):
    image = await kit.build("ENV greeting='good day'\nWORKDIR /srv/app\nUSER daemon")
    assert (image.env["greeting"], image.workdir, image.user) == ("good day", "/srv/app", "daemon")
    assert await kit.see(image, "echo $greeting; pwd; id -un") == "good day\n/srv/app\ndaemon"
