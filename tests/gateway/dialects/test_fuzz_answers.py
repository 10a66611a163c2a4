"""Clients read the same content from a whole answer and from any stream, for any answer."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
import pytest
from fuzz_pieces import VALID
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from wire_pieces import chunks_of

from plimsoll.gateway.completions import (
    Answer,
    Chunk,
    Refusal,
    Usage,
)
from plimsoll.gateway.dialects.protocol import STATUSES, Dialect
from plimsoll.gateway.dialects.registry import CHAT, MESSAGES, RESPONSES
from plimsoll.trajectories.messages import Message, Text, ToolCall

Content = list[tuple[Any, ...]]

texts = st.text(max_size=12)
arguments = texts | st.dictionaries(texts, texts | st.integers(), max_size=2).map(json.dumps)
names = st.sampled_from(["bash", "patch", "s__f", "local_shell"]) | st.text(min_size=1, max_size=8)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    text = draw(texts)
    made = draw(st.lists(st.tuples(names, arguments), max_size=3))
    calls = [ToolCall(f"c{index}", name, given) for index, (name, given) in enumerate(made)]
    counts = st.integers(0, 1000)
    return Answer(
        id="answer-1",
        message=Message(
            "assistant", (Text(text),) if text else (), reasoning=draw(texts), calls=tuple(calls)
        ),
        finish=draw(st.sampled_from(["stop", "length", "tool_calls", "refused"])),
        usage=draw(st.none() | st.builds(Usage, counts, counts, counts, counts)),
    )


@st.composite
def cuts(draw: st.DrawFn) -> Callable[[str], list[str]]:
    """A way to cut texts in pieces."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))

    def cut(text: str) -> list[str]:
        pieces: list[str] = []
        at = 0
        while at < len(text):
            size = sizes[len(pieces) % len(sizes)]
            pieces.append(text[at : at + size])
            at += size
        return pieces

    return cut


def together(chunks: Sequence[Chunk], size: int) -> list[Sequence[Chunk]]:
    """Chunks as they come from a network: some arrive together."""
    return [chunks[at : at + size] for at in range(0, len(chunks), size)]


class _Transport:
    """A transport that returns a fixed answer to the clients."""

    def __init__(self) -> None:
        self.body = b""
        self.kind = ""
        transport = httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=self.body, headers={"content-type": self.kind})
        )
        self.http = httpx2.Client(transport=transport)

    def carry(self, body: bytes, kind: str) -> None:
        self.body, self.kind = body, kind


TRANSPORT = _Transport()
OPENAI = openai.OpenAI(base_url="http://gateway/v1", api_key="k", http_client=TRANSPORT.http)
ANTHROPIC = anthropic.Anthropic(base_url="http://gateway", api_key="k", http_client=TRANSPORT.http)
ASKED: list[Any] = [{"role": "user", "content": "hello"}]


def chat_content(got: Any) -> Content:
    type(got).model_validate(got.model_dump())
    [choice] = got.choices
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
    ]
    return [(choice.finish_reason, choice.message.content or ""), *calls]


def chat_whole() -> Content:
    return chat_content(OPENAI.chat.completions.create(model="m", messages=ASKED))


def chat_streamed() -> Content:
    state = ChatCompletionStreamState()
    for chunk in OPENAI.chat.completions.create(model="m", messages=ASKED, stream=True):
        state.handle_chunk(chunk)
    return chat_content(state.current_completion_snapshot)


def responses_content(got: Any) -> Content:
    openai.types.responses.Response.model_validate(got.model_dump(warnings=False))
    content: Content = [(got.status, got.incomplete_details and got.incomplete_details.reason)]
    content.append(got.usage and (got.usage.input_tokens, got.usage.total_tokens))
    for item in got.output:
        fields = item.model_dump(exclude={"id", "parsed_arguments"}, warnings=False)
        for part in fields.get("content") or ():
            part.pop("parsed", None)
        content.append((fields,))
    return content


def responses_whole() -> Content:
    return responses_content(OPENAI.responses.create(model="m", input="hello"))


def responses_streamed() -> Content:
    with OPENAI.responses.stream(model="m", input="hello") as stream:
        *_, last = stream
    assert last.type in ("response.completed", "response.incomplete")
    return responses_content(last.response)


def messages_content(got: Any) -> Content:
    anthropic.types.Message.model_validate(got.model_dump())
    blocks = [(block.model_dump(exclude={"parsed_output"}),) for block in got.content]
    return [(got.stop_reason, got.usage.output_tokens), *blocks]


def messages_whole() -> Content:
    got = ANTHROPIC.messages.create(model="m", max_tokens=9, messages=ASKED)
    return messages_content(got)


def messages_streamed() -> Content:
    with ANTHROPIC.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
        return messages_content(stream.get_final_message())


@pytest.mark.parametrize(
    ("dialect", "whole", "streamed"),
    [
        (CHAT, chat_whole, chat_streamed),
        (RESPONSES, responses_whole, responses_streamed),
        (MESSAGES, messages_whole, messages_streamed),
    ],
    ids=["chat", "responses", "messages"],
)
@settings(deadline=None, max_examples=60)
@given(answer=answers(), cut=cuts(), size=st.integers(1, 4))
def test_every_transport_carries_the_same_content(
    dialect: Dialect,
    whole: Callable[[], Content],
    streamed: Callable[[], Content],
    answer: Answer,
    cut: Callable[[str], list[str]],
    size: int,
):
    request = dialect.read(json.dumps(VALID[dialect.name]).encode())
    TRANSPORT.carry(dialect.write(request, answer), "application/json")
    content = whole()
    TRANSPORT.carry(dialect.stream(request).whole(answer), "text/event-stream")
    assert streamed() == content
    stream = dialect.stream(request)
    pieces = [stream.start()]
    pieces += [stream.chunks(some) for some in together(chunks_of(answer, cut=cut), size)]
    TRANSPORT.carry(b"".join([*pieces, stream.end(answer)]), "text/event-stream")
    assert streamed() == content


commands = st.fixed_dictionaries(
    {"command": st.lists(texts, max_size=2)},
    optional={key: texts | st.integers(0, 9) | st.none() for key in ("timeout_ms", "more")},
)


@settings(deadline=None, max_examples=150)
@given(answer=answers(), command=commands, replays=st.booleans())
def test_an_answer_of_responses_comes_back_as_the_same_message(
    answer: Answer, command: dict[str, Any], replays: bool
):
    shell = ToolCall("sh", "local_shell", json.dumps(command))
    message = msgspec.structs.replace(answer.message, calls=(*answer.message.calls, shell))
    answer.message = message
    request = RESPONSES.read(json.dumps(VALID["responses"]).encode())
    if replays:
        events = RESPONSES.stream(request).whole(answer).decode().split("data: ")
        output = json.loads(events[-1])["response"]["output"]
    else:
        output = json.loads(RESPONSES.write(request, answer))["output"]
    back = RESPONSES.read(json.dumps({"model": "m", "input": output}).encode()).history
    assert len(back) == 1
    came = back.message(0)
    assert (came.role, came.text, came.reasoning) == ("assistant", message.text, message.reasoning)
    assert [written(call) for call in came.calls] == [written(call) for call in message.calls]


def written(call: ToolCall) -> tuple[Any, ...]:
    """A call; JSON arguments are compared by content."""
    try:
        return (call.id, call.name, json.loads(call.arguments))
    except ValueError:
        return (call.id, call.name, call.arguments)


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", STATUSES)
@settings(deadline=None, max_examples=5)
@given(message=texts, param=st.none() | texts)
def test_every_refusal_is_an_error_of_the_dialect(
    dialect: Dialect, kind: Any, message: str, param: str | None
):
    refusal = Refusal(kind, message, param=param)
    body = json.loads(dialect.refuse(refusal))
    assert isinstance(body["error"]["type"], str)
    assert message in body["error"]["message"]
    if dialect is MESSAGES:
        assert body["type"] == "error"
    else:
        assert body["error"]["param"] == param
    request = dialect.read(json.dumps(VALID[dialect.name]).encode())
    failed = dialect.stream(request).fail(refusal).decode()
    last = failed.rstrip("\n").split("\n\n")[-1]
    assert json.dumps(message)[1:-1] in json.dumps(json.loads(last.partition("data: ")[2]))
