"""RUN: forms, users, shells and networks. A failure names its line."""

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Kit = Any


@dataclass
class OnHost:
    ok: bool
    output: str


def on_host(command: str) -> OnHost:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return OnHost(done.returncode == 0, done.stdout)


async def test_shell_and_list_forms(kit: Kit):
    text = r"""
        FROM any
        ENV who=me
        RUN echo "$who" | tr a-z A-Z >/a && echo done >>/a; echo $0 >>/a
        RUN ["/bin/echo", "$who"]
        RUN ["python3", "-c", "open('/b', 'w').write('it\\'s $who')"]
        RUN echo one \
            # a comment
            two \
            >/c
        """
    image = await kit.build(text)
    assert await kit.see(image, "cat /a; cat /b; echo; cat /c") == (
        "ME\ndone\n/bin/sh\nit's $who\none two"
    )


async def test_a_failure_fails_the_build_and_names_the_line(kit: Kit):
    message = await kit.refused(
        """
        FROM any
        RUN true

        # why
        RUN echo some words && \\
            echo no such thing >&2 && \\
            exit 7
        RUN touch /never
        """
    )
    assert message.startswith("Dockerfile:5: RUN echo some words")
    assert message.endswith("failed (exit 7): no such thing")
    assert kit.made[-1].startswith("RUN echo some words")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('RUN ["no-such-program"]', "failed (exit 127): plimsoll: no-such-program: No such file"),
        ("RUN kill -9 $$", "failed (killed by signal 9)"),
        ("USER nobodyatall\nRUN true", ":3: the sandbox has no user 'nobodyatall'"),
        ("RUN --mount=type=cache,target=/c true", ":2: the local backend does not support --mount"),
        ("RUN --security=insecure true", ":2: the local backend does not support --security"),
        ("RUN --network=cable true", ":2: --network is one of default, host, none"),
        ("ENTRYPOINT /bin/x", ":2: the local backend does not support ENTRYPOINT"),
        ("VOLUME /data", ":2: the local backend does not support VOLUME"),
        ("HEALTHCHECK CMD true", ":2: the local backend does not support HEALTHCHECK"),
        ("ONBUILD RUN true", ":2: the local backend does not support ONBUILD"),
        ("SHELL /bin/bash", ":2: expected SHELL"),
        ("RUNN true", ":2: unknown instruction RUNN (did you mean RUN?)"),
    ],
)
async def test_unsupported_instructions_are_errors(kit: Kit, line: str, expected: str):
    assert expected in await kit.refused(line)


async def test_the_user_is_respected(kit: Kit):
    text = """
        FROM any
        RUN useradd --uid 1500 --create-home app && groupadd --gid 1600 team
        USER app
        RUN id -un >/tmp/a && echo $HOME >>/tmp/a && ! touch /no
        USER app:team
        RUN id -gn >>/tmp/a
        USER 1500:1600
        RUN id -u >>/tmp/a
        """
    image = await kit.build(text)
    assert await kit.see(image, "cat /tmp/a; id -un; id -gn; stat -c %U /home/app") == (
        "app\n/home/app\nteam\n1500\napp\nteam\napp"
    )
    assert not on_host("id app").ok


async def test_the_shell_is_respected(kit: Kit):
    failing = "RUN false | true"
    await kit.build(failing)
    strict = f'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\n{failing}'
    assert "Dockerfile:3: RUN false | true failed (exit 1)" in await kit.refused(strict)


async def test_network_none_has_no_network(kit: Kit):
    links = "python3 -c 'import socket; print(len(socket.if_nameindex()))'"
    host = int(on_host(links).output)
    text = f"RUN --network=none {links} >/none\nRUN {links} >/default\nRUN cat /proc/net/dev"
    assert await kit.show(text, "cat /none /default") == f"1\n{host}"


async def test_background_processes_end_before_the_layer_is_kept(kit: Kit):
    mark = f"plimsoll-mark-{os.getpid()}"
    prints = f"setsid bash -c 'while :; do date >>/x; sleep 0.01; done' {mark}"
    image = await kit.build(f"RUN {prints} & until [ -s /x ]; do sleep 0.05; done")
    sizes = []
    for _ in range(2):
        sizes.append(await kit.see(image, "wc -c </x"))
        await asyncio.sleep(0.1)
    assert sizes[0] == sizes[1] != "0"
    assert mark not in on_host("ps -eo args").output


async def test_package_tools_work_on_the_hosts_system(kit: Kit):
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("the host is no Debian")
    text = """
        FROM any
        RUN apt-get --version && dpkg -l | grep -q ^ii && dpkg -S /usr/bin/dpkg
        RUN mkdir -p /p/DEBIAN /p/usr/share/mark && touch /p/usr/share/mark/it
        COPY <<EOF /p/DEBIAN/control
        Package: plimsoll-mark
        Version: 1
        Architecture: all
        Maintainer: nobody <nobody@example.org>
        Description: a mark
        EOF
        RUN dpkg-deb -b /p /p.deb && dpkg -i /p.deb
        """
    shown = await kit.show(
        text, "dpkg -L plimsoll-mark | tail -1; dpkg -s plimsoll-mark | sed -n 2p"
    )
    assert shown == "/usr/share/mark/it\nStatus: install ok installed"
    assert not on_host("dpkg -s plimsoll-mark").ok


async def test_instructions_about_running_containers_have_no_effect(kit: Kit):
    text = 'LABEL a="b c" d=e\nEXPOSE 80\nSTOPSIGNAL SIGTERM\nCMD ["x"]\nMAINTAINER me\n'
    image = await kit.build(text)
    assert kit.made == []
    assert image.key == (await kit.build("")).key
