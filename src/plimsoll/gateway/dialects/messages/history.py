"""Translates the conversation of a Messages request to Chat Completions.

Each message depends only on what precedes it, so that a growing conversation keeps its bytes, and
with them its tokens. The translation follows what servers accept: tool results come right after the
calls, texts are strings, adjacent messages of one role are merged, and only the first message is a
system prompt.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from plimsoll.core.text import DECODE_ERRORS
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.encoding import INVALID_ARGUMENTS, joined, split_result
from plimsoll.gateway.dialects.size_limits import MAX_PARTS, check_count
from plimsoll.trajectories.messages import Image, Message, Part, Text, ToolCall

__all__ = [
    "Base64Source",
    "Block",
    "BlocksSource",
    "Document",
    "FileSource",
    "ImageBlock",
    "RedactedThinking",
    "SearchResult",
    "Source",
    "TextBlock",
    "TextSource",
    "Thinking",
    "ToolReference",
    "ToolResult",
    "ToolUse",
    "Turn",
    "UrlSource",
    "read_conversation",
]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Base64Source(msgspec.Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str


class UrlSource(msgspec.Struct, tag_field="type", tag="url"):
    url: str


class FileSource(msgspec.Struct, tag_field="type", tag="file"):
    file_id: str


class TextSource(msgspec.Struct, tag_field="type", tag="text"):
    data: str


class BlocksSource(msgspec.Struct, tag_field="type", tag="content"):
    content: "str | list[Block]"


Source = Base64Source | UrlSource | FileSource | TextSource | BlocksSource


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    source: Base64Source | UrlSource | FileSource


class Document(msgspec.Struct, tag_field="type", tag="document"):
    source: Source
    title: str | None = None
    context: str | None = None


class SearchResult(msgspec.Struct, tag_field="type", tag="search_result"):
    title: str
    source: str
    content: list[TextBlock]


class ToolReference(msgspec.Struct, tag_field="type", tag="tool_reference"):
    tool_name: str


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class ToolResult(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: "str | list[Block] | None" = None
    is_error: bool | None = None


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str


class RedactedThinking(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Opaque to all but the server that wrote it."""


Block = (
    TextBlock
    | ImageBlock
    | Document
    | SearchResult
    | ToolReference
    | ToolUse
    | ToolResult
    | Thinking
    | RedactedThinking
)


class Turn(msgspec.Struct):
    """A message of a request."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


BILLING = "x-anthropic-billing-header:"
"""Claude Code's note to its vendor. It is not part of the prompt, and differs between turns."""

_INVALID = msgspec.json.Decoder(dict[str, str])


def read_conversation(system: str | Sequence[TextBlock] | None, turns: list[Turn]) -> list[Message]:
    """All messages to send to the policy."""
    messages = list(_system(system))
    calls: frozenset[str] = frozenset()
    for role, group in groupby(turns, key=lambda turn: _role(turn)):
        blocks = [block for turn in group for block in _blocks(turn)]
        if role == "assistant":
            message = _answer(blocks)
            calls = frozenset(call.id for call in message.calls)
            messages.append(message)
        else:
            messages += _user_messages(blocks, calls)
    return messages


def _role(turn: Turn) -> str:
    return "assistant" if turn.role == "assistant" else "user"


def _blocks(turn: Turn) -> list[Block]:
    blocks = _as_list(turn.content)
    if turn.role != "system":
        return blocks
    # Chat templates reject a system prompt in the middle. Agents write it as a user message like
    # this.
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    return [TextBlock(f"<system-reminder>\n{text}\n</system-reminder>")]


def _as_list(content: str | list[Block] | None) -> list[Block]:
    if isinstance(content, str):
        return [TextBlock(content)]
    check_count(len(content or ()), MAX_PARTS, "messages.content")
    return content or []


def _system(system: str | Sequence[TextBlock] | None) -> Iterable[Message]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    check_count(len(texts), MAX_PARTS, "system")
    parts = joined((Text(text) for text in texts if not text.startswith(BILLING)), "\n")
    return [Message("system", parts)] if parts else []


def _answer(blocks: list[Block]) -> Message:
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        match block:
            case TextBlock(text):
                parts.append(Text(text))
            case Thinking(thinking):
                thoughts.append(thinking)
            case ToolUse(id, name, input):
                calls.append(ToolCall(id, name, _arguments(input)))
            case RedactedThinking():
                pass
            case _:
                raise _misplaced(block, "assistant")
    # The policy's text was one piece, however many blocks it was sent in.
    return Message(
        "assistant", joined(parts, ""), reasoning="\n".join(thoughts), calls=tuple(calls)
    )


def _arguments(input: msgspec.Raw) -> str:
    text = bytes(input).decode()
    if INVALID_ARGUMENTS in text:
        try:
            match _INVALID.decode(text):
                case {"_invalid_arguments": original, **rest} if not rest:
                    return original
                case _:
                    pass
        except DECODE_ERRORS:
            pass
    return text


def _user_messages(blocks: list[Block], calls: frozenset[str]) -> list[Message]:
    """The tool results, then everything else that the agent says."""
    results: list[Message] = []
    parts: list[Part] = []
    for block in blocks:
        if not isinstance(block, ToolResult):
            parts.append(_part(block))
            continue
        text, images = _result(block)
        if block.tool_use_id in calls:
            content = (Text(text),) if text else ()
            results.append(Message("tool", content, call_id=block.tool_use_id))
        else:
            # Servers reject a result without its call, which compaction may have removed.
            parts.append(Text(f"[result of the call {block.tool_use_id}]\n{text}"))
        parts += images
    merged = joined(parts, "\n")
    return [*results, Message("user", merged)] if merged or not results else results


def _result(block: ToolResult) -> tuple[str, list[Part]]:
    text, images = split_result(map(_part, _as_list(block.content)))
    return f"Error: {text}" if block.is_error else text, images


def _part(block: Block) -> Part:
    match block:
        case TextBlock(text):
            return Text(text)
        case ImageBlock(source):
            return Image(_address(source))
        case Document():
            return Text(_document(block))
        case SearchResult(title, source, content):
            check_count(len(content), MAX_PARTS, "messages.content")
            return Text("\n".join((title, source, *(part.text for part in content))))
        case ToolReference(tool_name):
            return Text(f"[tool: {tool_name}]")
        case _:
            raise _misplaced(block, "user")


def _address(source: Base64Source | UrlSource | FileSource) -> str:
    match source:
        case Base64Source(media_type, data):
            return f"data:{media_type};base64,{data}"
        case UrlSource(url):
            return url
        case FileSource(file_id):
            message = f"the file {file_id} is not available: send images as base64 or by URL"
            raise Refusal("unsupported", message, param="messages")


def _document(document: Document) -> str:
    match document.source:
        case TextSource(data):
            text = data
        case BlocksSource(content):
            text = "\n".join(
                block.text for block in _as_list(content) if isinstance(block, TextBlock)
            )
        case Base64Source(media_type):
            text = f"[a document of type {media_type}, which the policy cannot read]"
        case UrlSource() | FileSource():
            text = "[a document kept elsewhere, which the policy cannot read]"
    return "\n".join(piece for piece in (document.title, document.context, text) if piece)


def _misplaced(block: Block, role: str) -> Refusal:
    kind = type(block).__struct_config__.tag
    message = f"a {kind} block is not allowed in a message of the role {role}"
    return Refusal("bad_request", message, param="messages")
