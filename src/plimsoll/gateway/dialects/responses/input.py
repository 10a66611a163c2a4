"""Translates the items of a Responses request to messages.

The reasoning, text and calls of one answer are separate items, but one message to the policy. All
initial instructions become one system message, because chat templates accept no second one; later
developer messages are sent as user messages.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.encoding import decode, encode, joined, split_result
from plimsoll.gateway.dialects.responses.output import custom_arguments, turn_of
from plimsoll.gateway.dialects.responses.tools import LOCAL_SHELL, ToolList, function_name
from plimsoll.gateway.dialects.size_limits import MAX_MESSAGES, MAX_PARTS, check_count
from plimsoll.trajectories.messages import Image, Message, Other, Part, Text, ToolCall

__all__ = ["Conversation", "read_input"]


class _Kind(msgspec.Struct):
    type: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


_Content = str | list[_Part]


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content
    id: str | None = None


class _Reasoning(msgspec.Struct):
    id: str | None = None
    summary: list[_Part] = []
    content: list[_Part] | None = None


class _Call(msgspec.Struct):
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str = ""
    input: str = ""
    id: str | None = None


class _ShellCall(msgspec.Struct):
    action: dict[str, object]
    call_id: str | None = None
    id: str | None = None


class _Output(msgspec.Struct):
    output: _Content
    call_id: str | None = None
    id: str | None = None


class _Tools(msgspec.Struct):
    tools: msgspec.Raw


_INPUT: msgspec.json.Decoder[str | list[msgspec.Raw]] = msgspec.json.Decoder(
    str | list[msgspec.Raw]
)
_NO_PART = msgspec.Raw()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_PARTS = msgspec.json.Decoder(list[msgspec.Raw])
# Most clients write the type first, so that no parsing is needed.
_TYPE_FIRST = re.compile(rb'\{"type": ?"(\w+)"')
_KIND = msgspec.json.Decoder(_Kind)
_MESSAGE = msgspec.json.Decoder(_Message)
_REASONING = msgspec.json.Decoder(_Reasoning)
_CALL = msgspec.json.Decoder(_Call)
_SHELL_CALL = msgspec.json.Decoder(_ShellCall)
_OUTPUT = msgspec.json.Decoder(_Output)
_TOOLS = msgspec.json.Decoder(_Tools)


class _Answer:
    """An answer of the policy whose items are still being read."""

    __slots__ = ("calls", "reasoning", "texts", "turn")

    def __init__(self) -> None:
        self.turn = ""
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []

    def accepts(self, turn: str, call: bool) -> bool:
        """Whether an item belongs to this answer. For items without ids of this gateway: calls
        follow a text, and a text or reasoning after either begins another answer."""
        if turn and self.turn:
            return turn == self.turn
        return call or not (self.texts or self.calls)

    def message(self) -> Message:
        text = "".join(self.texts)
        return Message(
            role="assistant",
            parts=(Text(text),) if text else (),
            reasoning="".join(self.reasoning),
            calls=tuple(self.calls),
        )


class Conversation:
    """The messages and tools of the items, in order."""

    def __init__(self, instructions: str = "") -> None:
        self._system = [instructions] if instructions else []
        self._messages: list[Message] = []
        self._answer: _Answer | None = None
        self._following: list[Part] = []
        """Parts of tool results other than text, until the last result has been read."""
        self.tools: list[ToolList] = []

    def messages(self) -> list[Message]:
        self._close()
        if not self._system:
            return self._messages
        return [Message(role="system", parts=(Text("\n\n".join(self._system)),)), *self._messages]

    def add(self, message: Message) -> None:
        self._close()
        self._messages.append(message)

    def add_result(self, call_id: str, parts: tuple[Part, ...]) -> None:
        if self._answer is not None:
            self._close()
        text, following = split_result(parts)
        content = (Text(text),) if text else ()
        self._messages.append(Message(role="tool", parts=content, call_id=call_id))
        self._following += following

    def add_instruction(self, parts: tuple[Part, ...]) -> None:
        if self._messages or self._answer is not None:
            self.add(Message(role="user", parts=parts))
            return
        self._system += [part.text for part in parts if isinstance(part, Text)]

    def answer(self, id: str | None, *, call: bool = False) -> _Answer:
        """The answer that the next item of the policy belongs to."""
        turn = turn_of(id or "")
        if self._answer is None or not self._answer.accepts(turn, call):
            self._close()
            self._answer = _Answer()
        self._answer.turn = self._answer.turn or turn
        return self._answer

    def _close(self) -> None:
        if self._answer is not None:
            self._messages.append(self._answer.message())
            self._answer = None
        if self._following:
            self._messages.append(Message(role="user", parts=tuple(self._following)))
            self._following = []


def read_input(raw: msgspec.Raw, instructions: str) -> Conversation:
    """Parse `input`: a text, or a list of items."""
    conversation = Conversation(instructions)
    given = decode(raw, _INPUT, "input")
    if isinstance(given, str):
        conversation.add(Message(role="user", parts=(Text(given),) if given else ()))
        return conversation
    check_count(len(given), MAX_MESSAGES, "input")
    for index, item in enumerate(given):
        where = f"input[{index}]"
        kind = _kind(item, where)
        reader = _READERS.get(kind)
        if reader is None:
            raise _unknown(kind, where)
        reader(conversation, item, where)
    return conversation


def _kind(item: msgspec.Raw, where: str) -> str:
    found = _TYPE_FIRST.match(item)
    return found[1].decode() if found else decode(item, _KIND, where).type or "message"


def _unknown(kind: str, where: str) -> Refusal:
    if kind == "item_reference":
        problem = "items are not stored here; send the items themselves, with `store` false"
    else:
        problem = f"unknown item type `{kind}`"
    return Refusal("unsupported", f"{where}: {problem}", param=f"{where}.type")


def _read_message(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _MESSAGE, where)
    parts = _read_content(item.content, raw, "content", where)
    match item.role:
        case "assistant":
            answer = conversation.answer(item.id)
            answer.texts += [part.text for part in parts if isinstance(part, Text)]
        case "user":
            conversation.add(Message(role="user", parts=joined(parts, "\n")))
        case _:
            conversation.add_instruction(joined(parts, "\n"))


def _read_reasoning(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _REASONING, where)
    parts = item.content or item.summary
    check_count(len(parts), MAX_PARTS, where)
    answer = conversation.answer(item.id)
    answer.reasoning.append("\n\n".join(part.text or "" for part in parts))


def _read_call(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _CALL, where)
    name = function_name(item.name, item.namespace)
    conversation.answer(item.id, call=True).calls.append(
        ToolCall(item.call_id, name, item.arguments)
    )


def _read_custom_call(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _CALL, where)
    name = function_name(item.name, item.namespace)
    conversation.answer(item.id, call=True).calls.append(
        ToolCall(item.call_id, name, custom_arguments(item.id or "", item.input))
    )


def _read_shell_call(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _SHELL_CALL, where)
    # Remove the fields that the gateway added.
    added = ("type", "env")
    action = {
        key: value for key, value in item.action.items() if key not in added and value is not None
    }
    conversation.answer(item.id, call=True).calls.append(
        ToolCall(item.call_id or item.id or "", LOCAL_SHELL, encode(action).decode())
    )


def _read_output(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _OUTPUT, where)
    parts = _read_content(item.output, raw, "output", where)
    # Outputs of the local shell name their call by their own id.
    conversation.add_result(item.call_id or item.id or "", parts)


def _read_more_tools(conversation: Conversation, raw: msgspec.Raw, where: str) -> None:
    item = decode(raw, _TOOLS, where)
    conversation.tools.append(ToolList(f"{where}.tools", item.tools))


_READERS: dict[str, Callable[[Conversation, msgspec.Raw, str], None]] = {
    "message": _read_message,
    "reasoning": _read_reasoning,
    "function_call": _read_call,
    "custom_tool_call": _read_custom_call,
    "local_shell_call": _read_shell_call,
    "function_call_output": _read_output,
    "custom_tool_call_output": _read_output,
    "local_shell_call_output": _read_output,
    "additional_tools": _read_more_tools,
}


def _read_content(
    content: _Content, item: msgspec.Raw, field: Literal["content", "output"], where: str
) -> tuple[Part, ...]:
    """The parts of `content`, which is this field of the item."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    where = f"{where}.{field}"
    check_count(len(content), MAX_PARTS, where)
    raws = [_NO_PART] * len(content)
    if any(part.type == "input_audio" for part in content):
        raws = _RAW_PARTS.decode(_FIELDS.decode(item)[field])  # once for all parts
    return tuple(
        [
            _read_part(part, raw, f"{where}[{index}]")
            for index, (part, raw) in enumerate(zip(content, raws, strict=True))
        ]
    )


def _read_part(part: _Part, raw: msgspec.Raw, where: str) -> Part:
    match part.type:
        case "input_text" | "output_text" | "text" if part.text is not None:
            return Text(part.text)
        case "refusal" if part.refusal is not None:
            return Text(part.refusal)
        case "input_image" if part.image_url is not None:
            return Image(part.image_url)
        case "input_audio":
            # A copy: a slice would keep the whole body alive.
            return Other(raw.copy())
        case _:
            raise Refusal(
                "unsupported",
                f"{where}: a part of type `{part.type}` is unsupported or empty; "
                "send text, or an image by its `image_url`",
                param=where,
            )
