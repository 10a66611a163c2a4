import json
import random
import time

import pytest

from plimsoll.gateway.body_prefixes import BLOCK_BYTES, BodyPrefixes, Fingerprint
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.dialects.chat.dialect import ChatDialect

CHAT = ChatDialect()
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]


def conversation(turns, text='hé\n"messages":[1] ]}, '):
    messages = [{"role": "system", "content": text * 20}, {"role": "user", "content": "go"}]
    for turn in range(turns):
        messages.append({"role": "assistant", "content": f"{text}{turn}"})
        messages.append({"role": "user", "content": f"{turn}"})
    return messages


def body(messages, *, first=None, last=None, **style):
    fields = {**(first or {"model": "m"}), "messages": messages, **(last or {})}
    return json.dumps(fields, **style).encode()


def remember(prefixes, sent):
    fingerprint = Fingerprint.of(sent)
    known = prefixes.find(sent, fingerprint)
    request = CHAT.read(sent, known)
    if request.prefix is not None:
        prefixes.add(sent, fingerprint, request.prefix, replaced=known)
    return known, request


def same(left, right):
    assert [left.history.key(i) for i in range(len(left.history))] == [
        right.history.key(i) for i in range(len(right.history))
    ]
    assert [left.history.message(i) for i in range(len(left.history))] == [
        right.history.message(i) for i in range(len(right.history))
    ]
    assert bytes(left.messages) == bytes(right.messages)
    assert (left.model, left.stream) == (right.model, right.stream)
    assert {n: bytes(r) for n, r in left.settings.items()} == {
        n: bytes(r) for n, r in right.settings.items()
    }
    assert bytes(left.tools or b"") == bytes(right.tools or b"")


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"model": "m"}, {"tools": TOOLS, "temperature": 1}),
        ({"model": "m", "tools": TOOLS, "stream": True}, {}),
    ],
)
def test_a_continued_conversation_is_parsed_as_from_the_beginning(style, first, last):
    prefixes = BodyPrefixes()
    for turns in range(6):
        sent = body(conversation(turns), first=first, last=last, **style)
        known, request = remember(prefixes, sent)
        assert (known is not None) == (turns > 0)
        same(request, CHAT.read(sent))


def test_equal_messages_with_other_settings_share_a_prefix():
    prefixes = BodyPrefixes()
    remember(prefixes, body(conversation(2), last={"temperature": 1}))
    sent = body(conversation(2), last={"temperature": 0.5})
    known, request = remember(prefixes, sent)
    assert known is not None
    same(request, CHAT.read(sent))


def test_a_changed_history_is_parsed_from_the_beginning():
    prefixes, messages = BodyPrefixes(), conversation(3, text="x" * BLOCK_BYTES)
    sent = body(messages)
    remember(prefixes, sent)
    longer = body([*messages, {"role": "user", "content": "more"}])
    assert prefixes.find(longer, Fingerprint.of(longer)) is not None
    rng = random.Random(0)
    for _ in range(50):
        at = rng.randrange(len(sent) - 20)
        changed = longer[:at] + bytes([longer[at] ^ 1]) + longer[at + 1 :]
        assert prefixes.find(changed, Fingerprint.of(changed)) is None


def test_interleaved_conversations_are_both_remembered():
    prefixes = BodyPrefixes()
    for turns in range(4):
        for text in ("one", "two"):
            known, _ = remember(prefixes, body(conversation(turns, text)))
            assert (known is not None) == (turns > 0)


@pytest.mark.parametrize(
    "end",
    [
        b",]}",
        b",",
        b"]",
        b'],"messages":5}',
        b',{"role":"nobody"}]}',
        b',{"role":"user","content":"\xff"}]}',
    ],
)
def test_an_invalid_continuation_is_refused_as_from_the_beginning(end):
    prefixes = BodyPrefixes()
    start = body(conversation(2))
    remember(prefixes, start)
    sent = start[:-2] + end
    with pytest.raises(Refusal) as whole:
        CHAT.read(sent)
    with pytest.raises(Refusal) as known:
        remember(prefixes, sent)
    assert (known.value.kind, known.value.message) == (whole.value.kind, whole.value.message)


def test_a_duplicate_array_of_messages_is_handled_as_from_the_beginning():
    prefixes = BodyPrefixes()
    start = body(conversation(2))
    remember(prefixes, start)
    sent = start[:-1] + b',"messages":[{"role":"user","content":"hi"}]}'
    same(remember(prefixes, sent)[1], CHAT.read(sent))


def test_no_text_of_a_body_is_stored():
    prefixes = BodyPrefixes()
    remember(prefixes, body(conversation(2, text="s3cret" * 1000)))
    [(_, prefix)] = prefixes._prefixes
    assert b"s3cret" not in b"".join(bytes(raw) for raw in prefix.fields.values())


def test_a_body_full_of_decoys_does_not_block_the_event_loop():
    decoys = b'{"x":{' + b'"messages":0,' * 150_000 + b'"y":[0]},"model":"m",'
    began = time.process_time()
    request = CHAT.read(decoys + b'"messages":[{"role":"user","content":"hi"}]}')
    assert time.process_time() - began < 1
    assert len(request.history) == 1


def test_messages_are_found_after_a_decoy():
    first = {"model": "m", "x": {"messages": [0], "y": '"messages":['}}
    prefixes = BodyPrefixes()
    remember(prefixes, body(conversation(2), first=first))
    known, _ = remember(prefixes, body(conversation(3), first=first))
    assert known is not None
