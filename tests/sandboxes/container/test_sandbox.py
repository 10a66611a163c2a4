"""The real init as pid 1 of a namespace, used as in a container."""

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from plimsoll.core.errors import SandboxError, SandboxUnavailable, TransferError
from plimsoll.sandboxes.container.sandbox import ContainerSandbox


def _memory(pid: int | str, field: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) * 1024


def _init_of(sandbox: ContainerSandbox) -> int:
    """The pid of the init on this host: the child of `unshare`."""
    children = Path(f"/proc/{sandbox.id}/task/{sandbox.id}/children").read_text().split()
    return int(children[0])


async def test_commands_run_and_report_their_exit(real: ContainerSandbox):
    done = await real.exec("echo out; echo err >&2; exit 3")
    assert (done.stdout.text, done.stderr.text, done.exit_code) == ("out\n", "err\n", 3)
    assert (await real.exec("kill -11 $$")).signal == 11
    assert (await real.exec("kill -9 $$")).signal == 9
    assert (await real.exec(["no-such-command"])).exit_code == 127


async def test_a_command_costs_little_cpu_time(real: ContainerSandbox):
    await real.exec(["true"])
    before = time.process_time()
    for _ in range(100):
        await real.exec(["true"])
    # A quarter of a millisecond on an idle machine.
    assert (time.process_time() - before) / 100 < 0.01


async def test_output_is_fast_and_not_buffered(real: ContainerSandbox):
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
    before, started = _memory("self", "VmHWM"), time.process_time()
    done = await real.exec("head -c 256M /dev/zero", keep=100_000)
    assert done.stdout.total == 256 << 20
    assert _memory("self", "VmHWM") - before < 30 << 20
    # A fifth of a second on an idle machine: more than a gigabyte a second.
    assert time.process_time() - started < 10


async def test_a_flood_of_output_does_not_block_other_commands(real: ContainerSandbox):
    flows = asyncio.Event()
    flood = asyncio.create_task(real.exec("yes", on_output=lambda *_: flows.set()))
    await asyncio.wait_for(flows.wait(), 30)
    for _ in range(4):
        assert (await asyncio.wait_for(real.exec(["true"]), 30)).ok
    assert not flood.done()
    flood.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(flood, 30)


async def test_input_and_output_flow_concurrently(real: ContainerSandbox):
    sent = os.urandom(1 << 20) * 16
    seen = bytearray()
    done = await real.exec(["cat"], stdin=sent, on_output=lambda _, chunk: seen.extend(chunk))
    assert done.ok
    assert seen == sent


async def test_a_killed_init_ends_the_sandbox(real: ContainerSandbox):
    running = asyncio.create_task(real.exec("sleep 60"))
    await asyncio.sleep(0.1)
    os.kill(_init_of(real), 9)
    with pytest.raises(SandboxUnavailable, match="it fell over"):
        await asyncio.wait_for(running, 30)
    assert not (await real.status()).alive


async def test_a_closed_sandbox_leaves_no_process(real: ContainerSandbox):
    await real.exec("setsid sleep 4711 & true")
    init = _init_of(real)
    await real.close()
    assert not Path(f"/proc/{init}").exists()


async def test_a_tree_survives_upload_and_download(real: ContainerSandbox, tmp_path: Path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_bytes(os.urandom(3_000_001))
    (source / "link").symlink_to("sub/file")
    Path(os.fsdecode(os.fsencode(source) + b"/\xff\n")).write_text("x")
    sent = await real.upload(source, str(tmp_path / "inside"))
    back = await real.download(str(tmp_path / "inside"), tmp_path / "back")
    assert (sent.files, sent.bytes, sent.skipped) == (back.files, back.bytes, back.skipped)
    assert sent.files == 3
    assert (tmp_path / "back/link").read_bytes() == (source / "sub/file").read_bytes()
    assert sorted(os.listdir(os.fsencode(tmp_path / "back"))) == [b"link", b"sub", b"\xff\n"]  # noqa: PTH208


async def test_a_transfer_uses_little_memory_and_blocks_no_command(
    real: ContainerSandbox, tmp_path: Path
):
    with (tmp_path / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 128 << 20)
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("self", "VmHWM")
    carried = asyncio.create_task(real.upload(tmp_path / "big", str(tmp_path / "copy")))
    assert (await asyncio.wait_for(real.exec(["true"]), 30)).ok
    assert (await carried).bytes == 128 << 20
    fetched = asyncio.create_task(real.download(str(tmp_path / "copy"), tmp_path / "back"))
    assert (await asyncio.wait_for(real.exec(["true"]), 30)).ok
    assert (await fetched).bytes == 128 << 20
    assert _memory("self", "VmHWM") - before < 30 << 20


async def test_a_download_beyond_its_limit_stops_early_with_a_reason(
    real: ContainerSandbox, tmp_path: Path
):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TransferError, match="1,000"):
        async with asyncio.timeout(30):
            await real.download(str(tmp_path / "huge"), tmp_path / "out", limit=1000)
    assert not (tmp_path / "out").exists()
    assert (await real.status()).processes == 0


@pytest.mark.parametrize("path", ["", "/a\0b", "\ud800"])
async def test_an_invalid_path_is_an_error(real: ContainerSandbox, tmp_path: Path, path: str):
    (tmp_path / "file").write_text("x")
    for work in (
        real.upload(tmp_path / "file", path),
        real.download(path, tmp_path / "out"),
        real.empty(path),
    ):
        with pytest.raises(TransferError):
            await work
    assert (await real.exec("true")).ok


async def test_a_cancelled_transfer_leaves_no_open_file(real: ContainerSandbox, tmp_path: Path):
    with (tmp_path / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 30)
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for step in range(6):
        for work in (
            real.upload(tmp_path / "big", str(tmp_path / "copy")),
            real.download(str(tmp_path / "big"), tmp_path / "out"),
        ):
            running = asyncio.create_task(work)
            await asyncio.sleep(step * 0.01)
            running.cancel()
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 60)
    assert (await real.status()).processes == 0
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_an_http_server_can_serve_a_connection(real: ContainerSandbox):
    from aiohttp import web

    async def hello(request: web.Request) -> web.Response:
        return web.json_response({"got": len(await request.read())})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = runner.server()  # type: ignore[misc]
        handler.connection_made(writer.transport)
        while data := await reader.read(1 << 16):
            handler.data_received(data)
        handler.connection_lost(None)

    served = await real.serve(0, serve)
    ask = (
        "import urllib.request as u\n"
        f"for _ in range(3): print(u.urlopen('http://127.0.0.1:{served.port}/', b'x' * 5000000)"
        ".read())"
    )
    done = await real.exec(["python3", "-c", "import subprocess; " + ask], timeout=60)
    assert done.stdout.text == "b'{\"got\": 5000000}'\n" * 3, done.stderr.text
    await served.close()
    await runner.cleanup()


async def test_a_port_in_use_is_an_error(real: ContainerSandbox):
    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    served = await real.serve(0, nothing)
    with pytest.raises(SandboxError, match=rf"{served.port}"):
        await real.serve(served.port, nothing)
