"""A session can be used with its own key only."""

import logging
import os
import secrets
from pathlib import Path

import aiohttp
import pytest
import zstandard
from gateway_parts import ENDPOINTS, ServedSession, Stepped, asked, done, say
from raw_http import connected

from plimsoll.gateway.completions import Refusal
from plimsoll.testing.waiting import until

PATHS = [*ENDPOINTS, "/v1/messages/count_tokens", "/v1/models", "/v1/models/m"]


async def _refusal(url: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    method = "GET" if "models" in path else "POST"
    body = None if "models" in path else b"{}"
    async with aiohttp.request(method, url + path, headers=headers, data=body) as reply:
        return reply.status, await reply.read()


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_key_gets_401(served: ServedSession, path: str):
    root, key = served.access.root, served.access.key
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {key}x"},
        {"Authorization": f"Bearer {key[:-1]}"},
        {"Authorization": f"Basic {key}"},
        {"Authorization": key},
        {"x-api-key": "wrong"},
        {"x-api-key": "ä"},
    ):
        status, body = await _refusal(root, path, headers)
        assert status == 401, headers
        assert key.encode() not in body
    assert served.session.exchanges == 0


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_key_does_not_reveal_whether_a_session_exists(
    served: ServedSession, path: str
):
    wrong = {"Authorization": "Bearer wrong"}
    there = await _refusal(served.access.root, path, wrong)
    elsewhere = served.access.root.rpartition("/")[0] + "/" + secrets.token_hex(5)
    assert await _refusal(elsewhere, path, wrong) == there


async def test_either_header_carries_the_key(served: ServedSession):
    root, key = served.access.root, served.access.key
    for headers in ({"x-api-key": key}, {"authorization": f"bearer {key}"}):
        status, _ = await _refusal(root, "/v1/models", headers)
        assert status == 200


async def test_one_session_cannot_be_used_with_the_key_of_another(
    served: ServedSession, stepped: Stepped
):
    other = await served.gateway.open(served.folder / "other", blobs=served.folder / "blobs")
    theirs = other.access(served.gateway.port)
    assert theirs.key != served.access.key and theirs.root != served.access.root
    url = theirs.root + "/v1/chat/completions"
    async with served.client.post(url, json=asked("/v1/chat/completions")) as reply:
        assert reply.status == 401
    assert stepped.calls == []
    path = await other.end()
    assert path.stat().st_size < 1000


async def test_the_key_of_an_ended_session_gets_a_401_with_the_reason(served: ServedSession):
    await served.session.end()
    status, body = await served.ask()
    assert status == 401
    assert b"ended" in body
    status, body = await _refusal(
        served.access.root, "/v1/messages", {"Authorization": "Bearer wrong"}
    )
    assert status == 401
    assert b"ended" not in body


async def test_keys_do_not_leak_into_files_or_logs(
    served: ServedSession, stepped: Stepped, caplog, capfd
):
    caplog.set_level(logging.DEBUG)
    key = served.access.key
    assert key not in repr(served.access)
    for number, stream in enumerate((False, True)):
        asking = served.asking(number=number, stream=stream)
        done(await stepped.call(number), "fine")
        assert (await asking)[0] == 200
    asking = served.asking(number=2)
    say(await stepped.call(2), Refusal("upstream", "it failed"))
    await asking
    stepped.answer = None  # an internal error of the gateway, with its traceback in the log
    status, body = await served.ask(number=3)
    assert status == 502
    assert key.encode() not in body
    assert served.gateway.metrics.internal == 1
    await served.ask("/v1/messages", messages="of a wrong type")
    async with served.client.post(served.access.root + "/v1/nowhere") as reply:
        assert reply.status == 404
    await served.session.end()
    assert key not in repr(served.session) + repr(vars(served.gateway))
    assert "unexpected error" in caplog.text
    assert key not in caplog.text
    assert key not in "".join(capfd.readouterr())
    assert _files_with(served.folder, key) == []


@pytest.mark.parametrize("broken", ["\x01", "\r\n : x", "\r\nContent-Length: x"])
async def test_an_invalid_http_request_leaves_no_key_in_the_log(
    served: ServedSession, caplog, broken
):
    caplog.set_level(logging.DEBUG)
    raw = await connected(served)
    raw.send(
        f"GET / HTTP/1.1\r\nAuthorization: Bearer {served.access.key}{broken}\r\n\r\n".encode()
    )
    assert b" 400 " in await raw.until(b"\r\n")
    await until(lambda: "Error handling request" in caplog.text)
    assert served.access.key not in caplog.text


def _files_with(folder: Path, word: str) -> list[str]:
    return [
        str(Path(root) / name)
        for root, _, names in os.walk(folder)
        for name in names
        if word.encode() in _plain(Path(root) / name)
    ]


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".zst":
        return data
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read()
