"""Concurrent, interrupted and too slow builds."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.errors import BuildError
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import ImageSource
from plimsoll.testing.waiting import until

Kit = Any

BUILD = """
import asyncio, sys
from pathlib import Path
from plimsoll.sandboxes.local.backend import LocalBackend, LocalOptions
from plimsoll.sandboxes.protocol import ImageSource

async def main():
    async with LocalBackend(LocalOptions(home=Path(sys.argv[1]))) as backend:
        source = ImageSource(dockerfile=Path(sys.argv[2]))
        hear = lambda _, data: print(data.decode(), flush=True)
        images = await asyncio.gather(*(backend.build(source, on_output=hear) for _ in range(4)))
        print("KEY", images[0].key)

asyncio.run(main())
"""


def start_build(home: Path, dockerfile: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BUILD, str(home), str(dockerfile)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def left_over(home: Path) -> list[str]:
    return sorted(p.name for kind in ("layers", "sandboxes") for p in (home / kind).iterdir())


async def test_eight_concurrent_builds_build_once(kit: Kit):
    file = kit.write("Dockerfile", "FROM any\nRUN sleep 0.2; cat /proc/sys/kernel/random/uuid >/x")
    output: list[bytes] = []
    source = ImageSource(dockerfile=file)
    images = await asyncio.gather(
        *(kit.backend.build(source, on_output=lambda _, d: output.append(d)) for _ in range(8))
    )
    assert len({image.key for image in images}) == 1
    assert b"".join(output).count(b"RUN ") == 1


async def test_two_concurrent_processes_build_once(kit: Kit):
    file = kit.write("Dockerfile", "FROM any\nRUN sleep 0.3\nCOPY Dockerfile /x\nRUN echo it\n")
    builds = [start_build(kit.home, file) for _ in range(2)]
    outputs = [(await asyncio.to_thread(build.communicate))[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0]
    assert "".join(outputs).count("RUN sleep") == 1
    assert "".join(outputs).count("RUN echo it\n") == 1
    assert len({text.split("KEY")[1] for text in outputs}) == 1


async def test_a_cancelled_build_leaves_nothing(kit: Kit):
    file = kit.write("Dockerfile", "FROM any\nRUN touch /x && echo started && sleep 60")
    started = asyncio.Event()

    def hear(_: str, data: bytes) -> None:
        if data == b"started\n":
            started.set()

    build = asyncio.create_task(kit.backend.build(ImageSource(dockerfile=file), on_output=hear))
    await asyncio.wait_for(started.wait(), 60)
    build.cancel()
    with pytest.raises(asyncio.CancelledError):
        await build
    await until(lambda: left_over(kit.home) == [])


async def test_a_cancelled_build_does_not_stop_another_of_the_same(kit: Kit):
    file = kit.write("Dockerfile", "FROM any\nRUN sleep 0.3 && touch /x")
    first = asyncio.create_task(kit.backend.build(ImageSource(dockerfile=file)))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(kit.backend.build(ImageSource(dockerfile=file)))
    await asyncio.sleep(0.05)
    first.cancel()
    assert await kit.see(await second, "ls /x") == "/x"
    with contextlib.suppress(asyncio.CancelledError):
        await first


async def test_a_killed_build_leaves_no_incomplete_layer(tmp_path: Path):
    home = tmp_path / "home"
    file = tmp_path / "Dockerfile"
    mark = f"{time.time()}"
    file.write_text(f"FROM any\nRUN touch /x && echo started && sleep 60 # {mark}\n")
    build = await asyncio.to_thread(start_build, home, file)
    assert build.stdout is not None
    with build.stdout as outputs:
        while "started" not in (line := await asyncio.to_thread(outputs.readline)):
            assert line, "the build ended early"
        build.send_signal(signal.SIGKILL)
        await asyncio.to_thread(build.wait)
    assert list((home / "layers").iterdir()) == []
    file.write_text(file.read_text().replace("sleep 60", "sleep 0"))
    async with LocalBackend(LocalOptions(home=home)) as backend:
        assert list((home / "sandboxes").iterdir()) == []
        await backend.build(ImageSource(dockerfile=file))
    assert len(left_over(home)) == 1
    processes = await asyncio.create_subprocess_exec(
        "ps", "-eo", "args", stdout=asyncio.subprocess.PIPE
    )
    assert mark.encode() not in (await processes.communicate())[0]


async def test_a_build_that_takes_too_long_is_ended_and_names_the_line(kit: Kit):
    await kit.build("FROM any\nRUN true")  # cached, so that the timeout applies to the next line
    async with asyncio.timeout(60):
        with pytest.raises(BuildError) as caught:
            await kit.build("FROM any\nRUN true\nRUN sleep 600 & sleep 600", timeout=2)
    assert str(caught.value).endswith(
        "Dockerfile:3: the build took longer than 2 s (build_timeout_sec)"
    )
    await until(lambda: len(left_over(kit.home)) == 1)
