"""The fields of a request of Chat Completions that a server reads."""

from typing import Annotated

import msgspec

from plimsoll.core.unreadable import UNREADABLE
from plimsoll.gateway.serving.engine import Refused, Wanted
from plimsoll.gateway.upstreams.wire import ABSENT

__all__ = ["Fields", "read_fields", "read_messages", "read_tools"]

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Heat = Annotated[float, msgspec.Meta(ge=0, le=100)]


class _Format(msgspec.Struct):
    type: str = "text"


class Fields(msgspec.Struct):
    """What is not named here is not looked at."""

    messages: msgspec.Raw
    model: str = ""
    tools: msgspec.Raw = ABSENT
    tool_choice: msgspec.Raw = ABSENT
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Heat | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    response_format: _Format | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def wanted(self) -> Wanted:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Wanted(
            limit=self.limit,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0) if self.top_k is not None else None,
            seed=self.seed,
            stop=tuple(text for text in stop if text),
        )


_fields = msgspec.json.Decoder(Fields)
_messages = msgspec.json.Decoder(list[dict[str, object]])
_tools = msgspec.json.Decoder(list[object] | None)


def read_fields(body: bytes) -> Fields:
    """Raises `Refused` for what is no request, or asks for more than there is."""
    try:
        fields = _fields.decode(body)
    except UNREADABLE as error:
        raise Refused(f"the request cannot be read: {error}") from error
    if fields.n not in (None, 1):
        raise Refused("n above 1 is not supported: ask as often as you want answers")
    if fields.response_format is not None and fields.response_format.type != "text":
        raise Refused("response_format is not supported")
    if bytes(fields.tool_choice) not in (b"", b"null", b'"auto"', b'"none"'):
        raise Refused("tool_choice is auto or none here: no call can be enforced")
    return fields


def read_messages(fields: Fields) -> list[dict[str, object]]:
    try:
        messages = _messages.decode(fields.messages)
    except UNREADABLE as error:
        raise Refused(f"messages cannot be read: {error}") from error
    if not messages:
        raise Refused("messages are empty")
    return messages


def read_tools(fields: Fields) -> list[object] | None:
    """None where there are none, or none is to be called."""
    if not bytes(fields.tools) or bytes(fields.tool_choice) == b'"none"':
        return None
    try:
        return _tools.decode(fields.tools) or None
    except UNREADABLE as error:
        raise Refused(f"tools cannot be read: {error}") from error
