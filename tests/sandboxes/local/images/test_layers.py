"""Stacked layers: removals, replacements and metadata of later layers persist."""

import os
import shutil
from typing import Any

import pytest

from plimsoll.core.errors import SandboxUnavailable

Kit = Any


async def test_files_that_a_layer_removes_are_gone(kit: Kit):
    text = """
        FROM any
        RUN mkdir -p /d/sub && touch /d/a /d/sub/b
        RUN rm /d/a /usr/bin/env && rm -r /usr/share/doc
        RUN ! test -e /d/a && test -e /d/sub/b
        """
    image = await kit.build(text)
    gone = "test ! -e /d/a && test ! -e /usr/bin/env && test ! -e /usr/share/doc && ls /d"
    assert await kit.see(image, gone) == "sub"


async def test_folders_files_and_links_replace_each_other(kit: Kit):
    text = """
        FROM any
        RUN mkdir -p /a /b/old /c && touch /a/f /b/old/f /e && ln -s /c /d
        RUN rm -r /a && echo file >/a && rm -r /b && mkdir /b && touch /b/new && \\
            rm /d && mkdir /d && rm /e && ln -s /a /e
        RUN touch /b/newer
        """
    image = await kit.build(text)
    shown = await kit.see(image, "cat /a /e; ls /b; stat -c %F /d; readlink /e")
    assert shown == "file\nfile\nnew\nnewer\ndirectory\n/a"


async def test_a_moved_folder_is_complete(kit: Kit):
    text = """
        FROM any
        RUN mkdir -p /a/deep/er && echo 1 >/a/deep/er/f
        RUN mv /a/deep /b && mv /usr/share/doc/bash /usr/share/papers
        RUN mv /b/er /c
        """
    shown = await kit.show(text, "cat /c/f; ls -A /a /b; test -d /usr/share/papers && echo y")
    assert shown == "1\n/a:\n\n/b:\ny"


async def test_owners_special_modes_hard_links_and_capabilities_survive(kit: Kit):
    text = """
        FROM any
        RUN mkdir /d && cd /d && cp /usr/bin/id suid && chown daemon:bin suid && \\
            chmod u+s suid && mkdir -m 1777 sticky && mkdir -m 2755 sgid && \\
            echo x >one && ln one two && touch caps && setcap cap_net_raw+ep caps
        RUN true
        """
    if shutil.which("setcap") is None:
        text = text.replace("&& setcap cap_net_raw+ep caps", "")
    image = await kit.build(text)
    assert await kit.see(image, "cd /d && stat -c '%n %U:%G %a %h' suid sticky sgid one") == (
        "suid daemon:bin 4755 1\nsticky root:root 1777 2\n"
        "sgid root:root 2755 2\none root:root 644 2"
    )
    if shutil.which("setcap") is not None:
        assert await kit.see(image, "getcap /d/caps") == "/d/caps cap_net_raw=ep"


async def test_modes_of_the_top_folders_survive(kit: Kit):
    text = "RUN chmod 1777 /opt && chown daemon:bin /opt && chmod 711 /\nRUN true"
    image = await kit.build(text)
    assert await kit.see(image, "stat -c '%U:%G %a' /opt / /usr") == (
        "daemon:bin 1777\nroot:root 711\nroot:root 755"
    )


async def test_the_callers_umask_changes_nothing(kit: Kit):
    kit.write("a", mode=0o640)
    before = os.umask(0o077)
    try:
        text = "WORKDIR /w/x\nCOPY a /c/a\nCOPY <<EOF /t/t\nEOF\nRUN mkdir /r\nUSER daemon\n"
        image = await kit.build(text)
        shown = await kit.see(image, "stat -c %a / /usr /w /w/x /c /c/a /t /t/t /r | paste -sd' '")
    finally:
        os.umask(before)
    assert shown == "755 755 755 755 755 640 755 644 755"


async def test_files_of_the_host_change_in_the_image_alone(kit: Kit):
    text = "RUN echo changed >/usr/bin/env && mkdir /opt/mine && touch /usr/local/mine"
    image = await kit.build(text)
    assert await kit.see(image, "cat /usr/bin/env; ls -d /opt/mine /usr/local/mine | wc -l") == (
        "changed\n2"
    )
    assert shutil.which("env") == "/usr/bin/env"
    plain = await kit.build("")
    assert await kit.see(plain, "env echo fine; ls -d /opt/mine 2>/dev/null || true") == "fine"


@pytest.mark.slow
async def test_sixty_layers_work(kit: Kit):
    text = "FROM any\n" + "".join(f"RUN echo {n} >>/usr/x && touch /opt/{n}\n" for n in range(60))
    shown = await kit.show(text, "wc -l </usr/x; ls /opt | grep -c '^[0-9]*$'; tail -1 /usr/x")
    assert shown == "60\n60\n59"


@pytest.mark.slow
async def test_too_many_layers_are_an_error_with_the_line(kit: Kit):
    text = "FROM any\n" + "WORKDIR /x\n" * 119 + "RUN touch /usr/last\n"
    assert await kit.show(text, "ls /usr/last") == "/usr/last"
    message = await kit.refused(text + "RUN true\n")
    assert message == (
        "Dockerfile:122: the local backend stacks at most 120 layers: "
        "join RUN and COPY instructions"
    )


async def test_an_image_with_missing_layers_is_not_started(kit: Kit):
    image = await kit.build("RUN touch /x-unique-to-this-test")
    shutil.rmtree(kit.home / "layers" / image.key)
    with pytest.raises(SandboxUnavailable, match="is gone"):
        await kit.exec(image, "true")
