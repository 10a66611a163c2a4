"""Streams of the Responses dialect.

Every item begins with its first piece, but only reasoning is finished before the whole answer is
recorded: agents act on a call as soon as it is finished.
"""

from collections.abc import Sequence

from plimsoll.gateway.completions import (
    Answer,
    CallDelta,
    Chunk,
    Refusal,
    Request,
)
from plimsoll.gateway.dialects.encoding import encode
from plimsoll.gateway.dialects.openai_errors import openai_error_object
from plimsoll.gateway.dialects.responses.output import (
    Frame,
    Item,
    call_item,
    item_id,
    item_status,
    message_item,
    named_call,
    reasoning_item,
    summary_part,
    text_part,
)
from plimsoll.gateway.sse import sse_event
from plimsoll.trajectories.messages import ToolCall

__all__ = ["ResponsesStream"]


class _OpenItem:
    """An open item: its index, and the text sent so far."""

    __slots__ = ("announced", "id", "index", "sent")

    def __init__(self, index: int, id: str) -> None:
        self.index = index
        self.id = id
        self.sent: list[str] = []
        self.announced = False

    @property
    def text(self) -> str:
        return "".join(self.sent)

    def location(self) -> Item:
        return {"item_id": self.id, "output_index": self.index}


class ResponsesStream:
    """Writes one answer. Numbers its events, and gives each item the next index."""

    def __init__(self, request: Request) -> None:
        self._frame = Frame(request)
        self._started = False
        self._number = 0
        self._done: dict[int, Item] = {}
        self._items = 0
        self._reasoning_sent = 0
        self._reasoning: _OpenItem | None = None
        self._message: _OpenItem | None = None
        self._calls: dict[int, _OpenItem] = {}

    def start(self) -> bytes:
        """The events that begin the stream; empty at the second call."""
        if self._started:
            return b""
        self._started = True
        return self._event("response.created", response=self._frame.in_progress()) + self.ping()

    def ping(self) -> bytes:
        if not self._started:
            return self.start()
        # An event rather than a comment: some clients give up if no event comes for long.
        return self._event("response.in_progress", response=self._frame.in_progress())

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        events = [self.start()]
        texts: list[str] = []
        for chunk in chunks:
            if texts and (chunk.reasoning or chunk.calls):
                events.append(self._write_text("".join(texts)))
                texts.clear()
            if chunk.reasoning:
                events.append(self._write_reasoning(chunk.reasoning))
            if chunk.text:
                texts.append(chunk.text)
            for delta in chunk.calls:
                events.append(self._call(delta))
        if texts:
            events.append(self._write_text("".join(texts)))
        return b"".join(events)

    def end(self, answer: Answer) -> bytes:
        message = answer.message
        rest = [self.start(), self._write_reasoning(message.reasoning[self._reasoning_sent :])]
        rest.append(self._end_reasoning())
        rest.append(self._end_message(answer))
        rest.append(self._end_calls(answer))
        output = [self._done[index] for index in sorted(self._done)]
        name = f"response.{item_status(answer)}"
        rest.append(self._event(name, response=self._frame.whole(answer, output)))
        return b"".join(rest)

    def whole(self, answer: Answer) -> bytes:
        """A stream with the whole content of `answer`."""
        return self.start() + self.end(answer)

    def fail(self, refusal: Refusal) -> bytes:
        error = openai_error_object(refusal)
        # The code of an invalid request: clients retry after unknown codes.
        failure: Item = {"code": error["code"] or "invalid_prompt", "message": error["message"]}
        return self.start() + self._event("response.failed", response=self._frame.failed(failure))

    def _event(self, type: str, **fields: object) -> bytes:
        data: Item = {"type": type, "sequence_number": self._number, **fields}
        self._number += 1
        return sse_event(encode(data), type)

    def _begin(self, prefix: str) -> _OpenItem:
        item = _OpenItem(self._items, item_id(prefix, self._frame.turn, self._items))
        self._items += 1
        return item

    def _added(self, item: _OpenItem, content: Item) -> bytes:
        return self._event("response.output_item.added", output_index=item.index, item=content)

    def _finished(self, item: _OpenItem, whole: Item) -> bytes:
        self._done[item.index] = whole
        return self._event("response.output_item.done", output_index=item.index, item=whole)

    def _write_reasoning(self, text: str) -> bytes:
        if not text:
            return b""
        events: list[bytes] = []
        item = self._reasoning
        if item is None:
            item = self._reasoning = self._begin("rs")
            events.append(self._added(item, reasoning_item(item.id, "", encrypted=False)))
            events.append(self._summary("part.added", item, part=summary_part("")))
        item.sent.append(text)
        self._reasoning_sent += len(text)
        events.append(self._summary("text.delta", item, delta=text))
        return b"".join(events)

    def _summary(self, what: str, item: _OpenItem, **fields: object) -> bytes:
        name = f"response.reasoning_summary_{what}"
        return self._event(name, **item.location(), summary_index=0, **fields)

    def _end_reasoning(self) -> bytes:
        item = self._reasoning
        if item is None:
            return b""
        self._reasoning = None
        text = item.text
        return (
            self._summary("text.done", item, text=text)
            + self._summary("part.done", item, part=summary_part(text))
            + self._finished(item, reasoning_item(item.id, text, self._frame.encrypted))
        )

    def _write_text(self, text: str) -> bytes:
        events = [self._end_reasoning()]
        item = self._message
        if item is None:
            item = self._message = self._begin("msg")
            events.append(self._added(item, message_item(item.id, None, "in_progress")))
            events.append(self._content("content_part.added", item, part=text_part("")))
        if text:
            item.sent.append(text)
            events.append(self._content("output_text.delta", item, delta=text, logprobs=[]))
        return b"".join(events)

    def _content(self, what: str, item: _OpenItem, **fields: object) -> bytes:
        return self._event(f"response.{what}", **item.location(), content_index=0, **fields)

    def _end_message(self, answer: Answer) -> bytes:
        text = answer.message.text
        sent = sum(map(len, self._message.sent)) if self._message else 0
        if not text and answer.message.calls:
            return b""
        beginning = self._write_text(text[sent:])
        item = self._message
        assert item is not None
        return (
            beginning
            + self._content("output_text.done", item, text=text, logprobs=[])
            + self._content("content_part.done", item, part=text_part(text))
            + self._finished(item, message_item(item.id, text, item_status(answer)))
        )

    def _call(self, delta: CallDelta) -> bytes:
        item = self._calls.get(delta.index)
        if item is None:
            # Calls keep their order, whenever each of them begins.
            item = self._calls[delta.index] = self._begin("fc")
        beginning = b""
        if not item.announced:
            agent_tool = self._frame.agent_tools.get(delta.name)
            if not (delta.id and delta.name) or (agent_tool and agent_tool.kind != "function"):
                # The item's type depends on the complete arguments, so it waits for the whole
                # answer.
                return b""
            beginning = self._begin_call(item, ToolCall(delta.id, delta.name, ""))
        return beginning + self._arguments(item, delta.arguments)

    def _begin_call(self, item: _OpenItem, call: ToolCall) -> bytes:
        content = self._call_item(item, call, "in_progress")
        item.announced = True
        item.id = str(content["id"])
        for growing in ("arguments", "input"):
            if growing in content:
                content[growing] = ""
        return self._end_reasoning() + self._added(item, content)

    def _call_item(self, item: _OpenItem, call: ToolCall, status: str) -> Item:
        return call_item(self._frame.turn, item.index, call, status, self._frame.agent_tools)

    def _arguments(self, item: _OpenItem, arguments: str) -> bytes:
        if not arguments:
            return b""
        item.sent.append(arguments)
        name = "response.function_call_arguments.delta"
        return self._event(name, **item.location(), delta=arguments)

    def _end_calls(self, answer: Answer) -> bytes:
        items = [self._calls[index] for index in sorted(self._calls)]
        items += [self._begin("fc") for _ in answer.message.calls[len(items) :]]
        events: list[bytes] = []
        for index, (item, call) in enumerate(zip(items, answer.message.calls, strict=False)):
            call = named_call(call, self._frame.turn, index)
            if not item.announced:
                events.append(self._begin_call(item, call))
            events.append(self._end_call(item, call, item_status(answer)))
        return b"".join(events)

    def _end_call(self, item: _OpenItem, call: ToolCall, status: str) -> bytes:
        whole = self._call_item(item, call, status)
        events: list[bytes] = []
        match whole["type"]:
            case "function_call":
                events.append(self._arguments(item, call.arguments[len(item.text) :]))
                name = "response.function_call_arguments.done"
                fields = {"name": whole["name"], "arguments": call.arguments}
                events.append(self._event(name, **item.location(), **fields))
            case "custom_tool_call":
                name = "response.custom_tool_call_input"
                given = whole["input"]
                events.append(self._event(f"{name}.delta", **item.location(), delta=given))
                events.append(self._event(f"{name}.done", **item.location(), input=given))
            case _:
                pass
        events.append(self._finished(item, whole))
        return b"".join(events)
