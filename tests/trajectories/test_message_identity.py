import msgspec
import pytest
from recording_parts import assistant, bash, tool, user

from plimsoll.trajectories.messages import Image, Message, Other, Text, json_digest, message_digest

SAME = {
    "reasoning": (assistant("hi", reasoning="hm"), assistant("hi")),
    "text in parts": (assistant("hi there"), Message("assistant", (Text("hi "), Text("there")))),
    "blanks around an answer": (assistant("hi"), assistant("\nhi \n")),
    "no text, empty text": (assistant(), Message("assistant", (Text(""),))),
    "arguments in another order": (
        assistant("", bash("c", '{"a": 1, "b": [1, 2]}')),
        assistant("", bash("c", '{"b":[1,2],"a":1}')),
    ),
    "numbers as JavaScript writes them": (
        assistant("", bash("c", '{"a": 1.0, "b": 1e3}')),
        assistant("", bash("c", '{"a":1,"b":1000}')),
    ),
    "no arguments": (assistant("", bash("c", "")), assistant("", bash("c", "{}"))),
    "name of the speaker": (user("hi"), msgspec.structs.replace(user("hi"), name="ann")),
}

OTHER = {
    "role": (user("hi"), assistant("hi")),
    "text": (user("hi"), user("ho")),
    "blanks around what a user says": (user("hi"), user("hi ")),
    "image": (user("", Image("data:a")), user("", Image("data:b"))),
    "an image more": (user("hi"), user("hi", Image("data:a"))),
    "a part of another kind": (user("hi"), user("hi", Other(msgspec.Raw(b'{"a":1}')))),
    "call": (assistant("", bash("c")), assistant("")),
    "id of a call": (assistant("", bash("c")), assistant("", bash("d"))),
    "arguments": (assistant("", bash("c", '{"a":1}')), assistant("", bash("c", '{"a":2}'))),
    "arguments that are no JSON": (assistant("", bash("c", "{a")), assistant("", bash("c", "{b"))),
    "order of calls": (
        assistant("", bash("c"), bash("d")),
        assistant("", bash("d"), bash("c")),
    ),
    "the call that is answered": (tool("c", "x"), tool("d", "x")),
    "where a field ends": (tool("cx", "x"), tool("c", "xx")),
    "order of elements": (
        assistant("", bash("c", "[1,2]")),
        assistant("", bash("c", "[2,1]")),
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_changes_that_clients_make_keep_the_identity(what: str):
    left, right = SAME[what]
    assert message_digest(left) == message_digest(right)


@pytest.mark.parametrize("what", OTHER)
def test_different_content_is_another_message(what: str):
    left, right = OTHER[what]
    assert message_digest(left) != message_digest(right)


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": 1e999}', '"\\ud800"', "\x00", "nan"])
def test_arguments_of_any_kind_have_an_identity(arguments: str):
    message = assistant("", bash("c", arguments))
    assert message_digest(message) == message_digest(message)


def test_tools_are_the_same_in_another_order_of_keys():
    assert json_digest(b'[{"a":1,"b":2}]') == json_digest(b'[ {"b": 2, "a": 1} ]')
    assert json_digest(b'[{"a":1,"b":2}]') != json_digest(b'[{"a":2,"b":1}]')
