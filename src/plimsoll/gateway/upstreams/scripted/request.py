"""Requests to a scripted policy: the parsed fields of a Chat Completions body."""

from dataclasses import dataclass, field

import msgspec

__all__ = ["RequestCall", "RequestMessage", "RequestTool", "ScriptedRequest", "read_request"]


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class RequestCall(msgspec.Struct):
    id: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


class _ImageUrl(msgspec.Struct):
    url: str = ""


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""
    image_url: _ImageUrl | str | None = None

    @property
    def rendered(self) -> str:
        if self.image_url is None:
            return self.text
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class RequestMessage(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[RequestCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.rendered for part in self.content)
        return self.content or ""

    @property
    def reasoning_text(self) -> str:
        return self.reasoning or self.reasoning_content or ""


class RequestTool(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Offered(msgspec.Struct):
    function: RequestTool | None = None


@dataclass(slots=True)
class ScriptedRequest:
    """A request: the conversation, the offered tools, and the session, if it is known."""

    messages: list[RequestMessage]
    tools: list[RequestTool] = field(default_factory=list[RequestTool])
    tools_text: bytes = b""
    session: str = ""
    limit: int | None = None
    """The maximum number of tokens of the answer."""

    @property
    def last(self) -> str:
        """The text of the last message."""
        return self.messages[-1].text if self.messages else ""

    @property
    def conversation(self) -> str:
        return "\n".join(message.text for message in self.messages)


_messages = msgspec.json.Decoder(list[RequestMessage])
_tools = msgspec.json.Decoder(list[_Offered] | None)


def read_request(
    messages: msgspec.Raw,
    tools: msgspec.Raw | None,
    session: str = "",
    *,
    limit: int | None = None,
) -> ScriptedRequest:
    """Parse a request. Raises `msgspec.DecodeError` if it is invalid."""
    tool_entries: list[_Offered] = (_tools.decode(tools) if tools else None) or []
    return ScriptedRequest(
        messages=_messages.decode(messages),
        tools=[tool.function for tool in tool_entries if tool.function is not None],
        tools_text=bytes(tools) if tools and tool_entries else b"",
        session=session,
        limit=limit,
    )
