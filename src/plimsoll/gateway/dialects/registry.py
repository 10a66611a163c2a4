"""The dialects, by the path below a session's address at which each is spoken."""

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
    """Whether a request to a path that both share, as that of the models, is of a client of
    Anthropic's. The names of `headers` have to be in lower case, or matched in any."""
    return "anthropic-version" in headers
