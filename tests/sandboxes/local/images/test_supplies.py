"""Supplies of sandboxes and builds: visible only where they are given."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts import spec
from plimsoll.sandboxes.protocol import ImageSource, Mount, Supplies

Kit = Any


@pytest.fixture
def supplies(tmp_path: Path) -> Supplies:
    """A folder with a program that shadows the system's `id`."""
    folder = tmp_path / "supplies"
    (folder / "shims").mkdir(parents=True)
    (folder / "shims/id").write_text("#!/bin/sh\necho supplied\n")
    (folder / "shims/id").chmod(0o755)
    mounts = (Mount(folder, "/opt/supplies"),)
    return Supplies(mounts, {"SUPPLIED": "1"}, "/opt/supplies/shims", "k1")


async def build(kit: Kit, text: str, supplies: Supplies) -> Any:
    file = kit.write("Dockerfile", text)
    kit.made.clear()
    source = ImageSource(context=kit.context, dockerfile=file, supplies=supplies)
    return await kit.backend.build(source, on_output=kit.on_output)


def test_the_folders_are_first_in_path_once(supplies: Supplies):
    env = supplies.env_over({"PATH": "/bin", "A": "b"})
    assert env == {"PATH": "/opt/supplies/shims:/bin", "A": "b", "SUPPLIED": "1"}
    assert supplies.env_over(env) == env
    assert supplies.path_over({"PATH": "/opt/supplies/shims"}) == {"PATH": "/opt/supplies/shims"}
    assert Supplies().env_over({"A": "b"}) == {"A": "b"}


async def test_a_path_of_image_sandbox_or_command_keeps_the_folders(kit: Kit, supplies: Supplies):
    image = await build(kit, "FROM any\nENV PATH=/usr/bin:/bin\n", supplies)
    for env in ({}, {"PATH": "/bin:/usr/bin"}):
        sandbox = await kit.backend.create(image, spec(supplies=supplies, env=env))
        assert (await sandbox.exec("id")).stdout.text == "supplied\n"
        own = await sandbox.exec("id; echo $PATH", env={"PATH": "/usr/bin:/bin"})
        assert own.stdout.text == "supplied\n/opt/supplies/shims:/usr/bin:/bin\n"
        assert not (await sandbox.exec("touch /opt/supplies/x")).ok
        await sandbox.close()


async def test_a_sandbox_without_supplies_does_not_see_them(kit: Kit, supplies: Supplies):
    image = await build(kit, "FROM any\nRUN id > /made\n", supplies)
    sandbox = await kit.backend.create(image, spec())
    seen = await sandbox.exec("cat /made; id -u; echo $PATH $SUPPLIED; ls -A /opt/supplies")
    await sandbox.close()
    assert seen.stdout.text.startswith("supplied\n0\n")
    assert "supplies" not in seen.stdout.text


async def test_builds_with_other_supplies_are_cached_apart(kit: Kit, supplies: Supplies):
    text = "FROM any\nRUN id > /made\n"
    images = [
        await build(kit, text, given)
        for given in (supplies, Supplies(), replace(supplies, key="k2"))
    ]
    assert len({image.key for image in images}) == 3
    assert (await build(kit, text, supplies)).key == images[0].key
    assert kit.made == []
