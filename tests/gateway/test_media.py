"""Requests can point the policy's server at allowed hosts only, wherever the URL is."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_parts import Stepped, done, serving

from plimsoll.config.file import load_config
from plimsoll.core.errors import UsageError
from plimsoll.core.host_names import check_host_names
from plimsoll.gateway.media import MediaHosts
from plimsoll.gateway.sessions.limits import Limits
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.workers.worker.policy_service import policy_for

HOSTS = MediaHosts(("images.example.org", "*.cdn.example.org", "10.0.0.7", "[fd00::7]"))


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,eA==",
        "data:,",
        "http://images.example.org",
        "https://images.example.org/a.png?b=c&d=@e#f",
        "https://IMAGES.Example.org:8443/a.png",
        "https://images.example.org./a.png",
        "https://a.cdn.example.org/x",
        "https://a.b.cdn.example.org/x",
        "http://10.0.0.7/x",
        "http://[fd00::7]:80/x",
    ],
)
def test_inline_content_and_allowed_hosts_are_forwarded(url: str):
    assert HOSTS.allow(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.png",
        "/etc/passwd",
        "../a.png",
        "//images.example.org/a.png",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file://images.example.org/etc/passwd",
        " file:///etc/passwd",
        "ftp://images.example.org/a",
        "s3://images.example.org/a",
        "blob:sha256:" + "0" * 64,
        "gopher://images.example.org/",
        "http:images.example.org/a",
        "http:/images.example.org/a",
        "http:///images.example.org/a",
        "HTTP://images.example.org/a.png",
        "DATA:image/png;base64,eA==",
        " data:image/png;base64,eA==",
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166/latest",
        "http://0xa9fea9fe/",
        "http://0251.0376.0251.0376/",
        "http://127.1/",
        "http://localhost:8000/v1",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00::8]/",
        "http://10.0.0.70/",
        "https://example.org/a.png",
        "https://cdn.example.org/a.png",
        "https://evilcdn.example.org/a.png",
        "https://images.example.org.evil.net/",
        "https://evil.net/images.example.org",
        "https://images.example.org@evil.net/",
        "https://user:key@images.example.org/",
        "https://evil.net\\@images.example.org/",
        "https://images.example.org\\@evil.net/",
        "https://evil.net#@images.example.org/",
        "https://images.example.org#@evil.net/",
        "https://images.example.org?@evil.net/",
        "https://images.example.org:80@evil.net/",
        "https://images.example.org:80:90/",
        "https://images.example.org%2eevil.net/",
        "https://images%2eexample.org/",
        "https://images.example.org /a",
        "https://images.example.org/a b",
        "https://images.example.org/\n",
        "https://images.example.org\t/",
        "https://images\u3002example.org/",
        "https://\uff49mages.example.org/",
        "https://images.example.org/\u00e9",
        "https://images.example.org/\x00",
    ],
)
def test_all_other_urls_are_refused(url: str):
    assert not HOSTS.allow(url)
    if not url.startswith("data:"):
        assert not MediaHosts().allow(url)


@pytest.mark.parametrize(
    "name", ["*", "*.*", "http://a.org", "a.org/x", "a.org:80", "*a.org", "", "a b", "a_.", "::1"]
)
def test_an_invalid_host_is_refused_in_the_configuration(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match=r"--media-host.*is not a host"):
        check_host_names((name,), "--media-host")
    file = tmp_path / "plimsoll.toml"
    file.write_text(f"[policy]\nmedia_hosts = [{json.dumps(name)}]\n")
    with pytest.raises(UsageError, match=r"plimsoll.toml:2: policy.media_hosts: "):
        load_config(file)


def test_the_configured_hosts_apply_to_every_session(tmp_path: Path):
    class Agent:
        name = "agent"
        needs_policy = True

    file = tmp_path / "plimsoll.toml"
    file.write_text('[policy]\nurls = ["http://gpu:1/v1"]\nmedia_hosts = ["*.Example.org"]\n')
    spec = policy_for(Agent(), load_config(file).policy, (), None, None)  # type: ignore[arg-type]
    assert spec is not None
    assert MediaHosts(spec.limits.media_hosts).allow("https://a.example.org/")


def _chat(part: dict[str, Any], role: str = "user") -> tuple[str, dict[str, Any]]:
    message = {"role": role, "content": [{"type": "text", "text": "look"}, part]}
    if role == "tool":
        message["tool_call_id"] = "c"
    return "/v1/chat/completions", {"messages": [message]}


def _responses(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [item]}


def _message(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [part]}


def _messages(*blocks: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}


def _picture(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


def locations(url: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every location of a URL that a server would open."""
    image = {"type": "input_image", "image_url": url}
    output = {"call_id": "c", "output": [image]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [_picture(url)]}
    return {
        "image_url": _chat({"type": "image_url", "image_url": {"url": url}}),
        "image_url as text": _chat({"type": "image_url", "image_url": url}),
        "image of a tool": _chat({"type": "image_url", "image_url": {"url": url}}, "tool"),
        "image of the system": _chat({"type": "image_url", "image_url": {"url": url}}, "system"),
        "image of an answer": _chat({"type": "image_url", "image_url": {"url": url}}, "assistant"),
        "audio_url": _chat({"type": "audio_url", "audio_url": {"url": url}}),
        "audio_url as text": _chat({"type": "audio_url", "audio_url": url}),
        "video_url": _chat({"type": "video_url", "video_url": {"url": url}}),
        "video_url as a list": _chat({"type": "video_url", "video_url": [{"url": url}]}),
        "input_image": _responses(_message(image)),
        "output of a function": _responses({"type": "function_call_output", **output}),
        "output of a custom tool": _responses({"type": "custom_tool_call_output", **output}),
        "source": _messages(_picture(url)),
        "source in a tool result": _messages(result),
        "source in another message": _messages({"type": "text", "text": "x"}, _picture(url)),
    }


def hidden(url: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Locations that a server may read although the part has another type."""
    audio = {"type": "input_audio", "input_audio": {"data": "ab", "format": "wav"}}
    return {
        "input_audio": _chat({"type": "input_audio", "input_audio": {"data": url}}),
        "format": _chat({"type": "input_audio", "input_audio": {"data": "ab", "format": url}}),
        "file_data": _chat({"type": "file", "file": {"file_data": url}}),
        "file_url": _chat({"type": "file", "file": {"file_url": url}}),
        "text": _chat({"type": "text", "text": "", "uuid": "u", "image_url": {"url": url}}),
        "text with video": _chat({"type": "text", "text": "", "video_url": {"url": url}}),
        "image with video": _chat(
            {
                "type": "image_url",
                "image_url": {"url": "data:,"},
                "uuid": "u",
                "video_url": {"url": url},
            }
        ),
        "audio with video": _chat({**audio, "uuid": "u", "video_url": {"url": url}}),
        "image": _chat({"type": "image", "image": url}),
        "unknown": _chat({"type": "new", "new": {"url": url}}),
        "audio of Responses": _responses(_message({**audio, "video_url": {"url": url}})),
        "file of Responses": _responses(_message({"type": "input_file", "file_url": url})),
        "embeds": _chat({"type": "text", "text": "", "image_embeds": "AAAA"}),
        "embeds of Responses": _responses(_message({**audio, "image_embeds": "AAAA"})),
    }


INSIDE = "http://169.254.169.254/latest/meta-data"


@pytest.mark.parametrize("url", [INSIDE, "file:///etc/passwd"])
@pytest.mark.parametrize("location", [*locations(""), *hidden("")])
async def test_urls_of_the_internal_network_or_files_are_refused(
    tmp_path: Path, location: str, url: str
):
    path, body = {**locations(url), **hidden(url)}[location]
    async with serving(ScriptedPolicy(lambda _: "fine"), tmp_path) as gateway:
        status, answer = await gateway.ask(path, **body)
        assert status == 400, answer
        error = json.loads(answer)["error"]
        if location in locations(url):
            assert "media_hosts" in error["message"]
        assert gateway.gateway.metrics.internal == 0
        assert gateway.session.exchanges == 0


@pytest.mark.parametrize("location", locations(""))
async def test_a_url_of_an_allowed_host_is_forwarded(
    tmp_path: Path, stepped: Stepped, location: str
):
    path, body = locations("https://images.example.org/a.png")[location]
    limits = Limits(media_hosts=("images.example.org",))
    async with serving(stepped, tmp_path, limits) as gateway:
        asking = asyncio.create_task(gateway.ask(path, **body))
        done(await stepped.call(), "fine")
        assert (await asking)[0] == 200
    async with serving(stepped, tmp_path / "without") as gateway:
        assert (await gateway.ask(path, **body))[0] == 400


async def test_the_tokens_of_a_refused_url_are_not_counted(tmp_path: Path, stepped: Stepped):
    stepped.counting.set()
    _, body = _messages(_picture(INSIDE))
    async with serving(stepped, tmp_path) as served:
        for blocks, status in ((body["messages"], 400), ([{"role": "user", "content": "x"}], 200)):
            url = f"{served.access.root}/v1/messages/count_tokens"
            async with served.client.post(url, json={"model": "m", "messages": blocks}) as reply:
                assert reply.status == status


async def test_urls_in_texts_arguments_and_documents_are_plain_text(
    tmp_path: Path, stepped: Stepped
):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": INSIDE}}
    document = {"type": "document", "source": {"type": "url", "url": INSIDE}}
    bodies = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": INSIDE}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]},
        ),
        _chat({"type": "text", "text": INSIDE}),
        _chat({"type": "thinking", "thinking": INSIDE}),
        _messages(document),
    ]
    async with serving(stepped, tmp_path) as served:
        for number, (path, body) in enumerate(bodies):
            asking = asyncio.create_task(served.ask(path, **body))
            done(await stepped.call(number), "fine")
            assert (await asking)[0] == 200
