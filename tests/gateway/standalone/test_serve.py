"""The checks and output of `plimsoll gateway` at its start."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from plimsoll.cli.terminal import gateway
from plimsoll.cli.terminal.gateway import ADMIN_KEY, Options
from plimsoll.core.errors import UsageError
from plimsoll.testing.waiting import until


@pytest.fixture
def options(tmp_path: Path):
    script = tmp_path / "says.toml"
    script.write_text("otherwise = 'Hi.'\n")

    def make(**more) -> Options:
        given = {"host": "127.0.0.1", "out": tmp_path / "out", **more}
        return Options(upstream=(f"scripted:{script}",), port=0, model=None, **given)

    return make


async def printed_lines(options: Options, monkeypatch) -> dict[str, str]:
    """The lines that the command prints while it serves, by their first word."""
    lines: list[str] = []
    monkeypatch.setattr(gateway.click, "echo", lines.append)
    serving = asyncio.create_task(gateway._serve(options))
    try:
        await until(lambda: serving.done() or any("watch" in line for line in lines))
        if serving.done():
            serving.result()
        shown = dict(line.split(maxsplit=1) for line in lines)
        root = shown["gateway"].split()[0]
        async with aiohttp.ClientSession() as client, client.get(f"{root}/healthz") as reply:
            assert reply.status == 200
        return shown
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_an_empty_admin_key_is_none(options, monkeypatch):
    monkeypatch.setenv(ADMIN_KEY, "")
    shown = await printed_lines(options(), monkeypatch)
    assert shown["admin"].split()[-1].startswith("sk-plimsoll-")
    monkeypatch.setenv(ADMIN_KEY, "sesame")
    shown = await printed_lines(options(), monkeypatch)
    assert shown["admin"].split()[-1] == f"${ADMIN_KEY}"


async def test_an_ipv6_address_is_shown_as_a_url(options, monkeypatch):
    shown = await printed_lines(options(host="::1"), monkeypatch)
    assert shown["gateway"].startswith("http://[::1]:")


async def test_a_read_only_folder_is_reported_at_once(options, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "below", Path("/proc/nope")):
        with pytest.raises(UsageError, match=f"cannot be written to {out}: .*--out"):
            await printed_lines(options(out=out), monkeypatch)
