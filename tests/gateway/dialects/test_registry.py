"""Each dialect is found at its path."""

from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.protocol import STATUSES
from plimsoll.gateway.dialects.registry import DIALECTS, speaks_anthropic


def test_each_dialect_has_a_path_and_a_name_of_its_own():
    assert {path: dialect.name for path, dialect in DIALECTS.items()} == {
        "/v1/chat/completions": "chat",
        "/v1/responses": "responses",
        "/v1/messages": "messages",
    }


def test_every_dialect_can_refuse_in_every_way():
    for dialect in DIALECTS.values():
        for kind in STATUSES:
            assert b"why it is so" in dialect.refuse(Refusal(kind, "why it is so"))


def test_anthropics_clients_are_recognized_by_their_header():
    assert speaks_anthropic({"anthropic-version": "2023-06-01"})
    assert not speaks_anthropic({"authorization": "Bearer k"})
