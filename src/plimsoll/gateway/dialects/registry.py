"""The dialects, by their path below a session's address."""

from collections.abc import Mapping

from plimsoll.gateway.dialects.chat.dialect import ChatDialect
from plimsoll.gateway.dialects.messages.dialect import MessagesDialect
from plimsoll.gateway.dialects.protocol import Dialect
from plimsoll.gateway.dialects.responses.dialect import ResponsesDialect

__all__ = ["CHAT", "DIALECTS", "MESSAGES", "RESPONSES", "speaks_anthropic"]

CHAT: Dialect = ChatDialect()
RESPONSES: Dialect = ResponsesDialect()
MESSAGES: Dialect = MessagesDialect()

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


def speaks_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether the request to a shared path, such as that of the models, is from Anthropic's client.
    `headers` must be case-insensitive, or in lower case."""
    return "anthropic-version" in headers
