import gc
import os
import tracemalloc
import weakref
from pathlib import Path

import msgspec
from recording_parts import Spoken, assistant, done, user

from plimsoll.trajectories.graph import Graph
from plimsoll.trajectories.message_tree import Node
from plimsoll.trajectories.messages import Message, Text, raw_key
from plimsoll.trajectories.recorder import Recorder
from plimsoll.trajectories.reported_tokens import TokenIds

LIVING = (Graph, Node, Message)


class Body:
    """The messages of a body, each parsed on first use."""

    def __init__(self, body: bytes) -> None:
        self._messages = msgspec.json.decode(body, type=list[msgspec.Raw])

    def __len__(self) -> int:
        return len(self._messages)

    def key(self, index: int) -> bytes:
        return raw_key(self._messages[index])

    def message(self, index: int) -> Message:
        return Message("user", (Text(msgspec.json.decode(self._messages[index])["content"]),))


def living() -> int:
    gc.collect()
    return sum(isinstance(one, LIVING) for one in gc.get_objects())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def converse(recorder: Recorder, turns: int, size: int = 100) -> None:
    history: list[Message] = []
    for turn in range(turns):
        history.append(user(f"{turn}" + "x" * size))
        answer = assistant(f"{turn}" + "y" * size)
        recorder.commit(recorder.locate(Spoken(history), None), done(history, answer))
        history.append(answer)


async def test_a_closed_or_abandoned_recorder_holds_nothing(tmp_path: Path):
    before, open_before = living(), descriptors()
    closed = Recorder.open(tmp_path / "a", tmp_path / "blobs", "a", {})
    left = Recorder.open(tmp_path / "b", tmp_path / "blobs", "b", {})
    converse(closed, 20)
    converse(left, 20)
    assert living() > before
    await closed.close("submitted")
    left.abandon()
    assert living() == before
    assert descriptors() == open_before


def test_an_abandoned_graph_needs_no_garbage_collection(tmp_path: Path):
    recorder = Recorder.open(tmp_path / "a", tmp_path / "blobs", "a", {})
    converse(recorder, 5)
    graph = weakref.ref(recorder._graph)  # type: ignore[arg-type]
    gc.disable()
    try:
        recorder.abandon()
        assert graph() is None
    finally:
        gc.enable()


def test_a_session_holds_no_text(tmp_path: Path):
    recorder = Recorder.open(tmp_path / "a", tmp_path / "blobs", "a", {})
    body = msgspec.json.encode([{"role": "user", "content": "x" * 1_000_000}])
    tools = msgspec.json.encode([{"description": "t" * 1_000_000}])
    answer = assistant("y" * 1_000_000)
    returned = TokenIds([1], [2], [-1.0])
    counted = done([], answer, tokens=returned, prompt_tokens=1, answer_tokens=1)
    recorder.trouble("upstream", "the first call allocates caches")
    tracemalloc.start()
    history = Body(body)
    request = msgspec.json.decode(b'{"tools":' + tools + b"}", type=dict[str, msgspec.Raw])
    recorder.commit(recorder.locate(history, request.pop("tools")), counted)
    del history, request
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    recorder.abandon()
    assert held < 100_000


def test_a_request_in_flight_does_not_keep_its_body_for_its_tools():
    body = b'{"tools":[{"name":"bash"}],"messages":"' + b"x" * 1_000_000 + b'"}'
    graph = Graph()
    tracemalloc.start()
    request = msgspec.json.decode(bytes(bytearray(body)), type=dict[str, msgspec.Raw])
    position = graph.locate(Spoken([user("hello")]), request.pop("tools"))
    del request
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert position.tools is not None
    assert held < 100_000


async def test_memory_does_not_grow_with_sessions(tmp_path: Path):
    sizes: list[int] = []
    tracemalloc.start()
    for number in range(12):
        recorder = Recorder.open(tmp_path / f"{number}", tmp_path / "blobs", "s", {})
        converse(recorder, 5, 1_000)
        await recorder.close("submitted")
        del recorder
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] - sizes[3] < 30_000
