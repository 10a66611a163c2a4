"""The pieces of a request of Anthropic's Messages, as clients write them."""

from typing import Literal

import msgspec

__all__ = [
    "Base64Source",
    "Block",
    "BlocksSource",
    "Document",
    "FileSource",
    "Picture",
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


class Picture(msgspec.Struct, tag_field="type", tag="image"):
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
    """Opaque to everyone but the server that wrote it."""


Block = (
    TextBlock
    | Picture
    | Document
    | SearchResult
    | ToolReference
    | ToolUse
    | ToolResult
    | Thinking
    | RedactedThinking
)


class Turn(msgspec.Struct):
    """A message as it stands in a request."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]
