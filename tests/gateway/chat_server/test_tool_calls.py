import pytest

from plimsoll.gateway.chat_server.tool_calls import StreamedText, read_calls

ONE = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
TWO = '<tool_call>\n{"arguments": {}, "name": "submit"}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "before", "calls"),
    [
        ("plain", "plain", []),
        (ONE, "", [("bash", '{"command": "ls"}')]),
        (f"I look.\n{ONE}\n{TWO}", "I look.\n", [("bash", '{"command": "ls"}'), ("submit", "{}")]),
        (ONE.removesuffix("</tool_call>"), "", [("bash", '{"command": "ls"}')]),
        ('<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
        ('<tool_call>{"name":"a","arguments":"{\\"b\\":1}"}</tool_call>', "", [("a", '{"b":1}')]),
    ],
)
def test_calls_are_parsed_as_written(text, before, calls):
    found = read_calls(text)
    assert (found[0], [(call.name, call.arguments) for call in found[1]]) == (before, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>{</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>["bash"]</tool_call>',
        f"{ONE}<tool_call>no</tool_call>",
        "<tool_call>\ud83d</tool_call>",
    ],
)
def test_invalid_calls_stay_text(text):
    assert read_calls(text) == (text, [])


@pytest.mark.parametrize(
    "text", ["plain <b> text", f"Look. {ONE}", f"a<tool{ONE}{TWO}", "<tool_ca"]
)
@pytest.mark.parametrize("cut", [1, 3, 7, 100])
def test_a_stream_passes_text_at_once_and_calls_at_the_end(text, cut):
    speech = StreamedText(tools=True)
    emitted = "".join(speech.add(text[at : at + cut]) for at in range(0, len(text), cut))
    rest, calls = speech.end()
    whole = read_calls(text)
    assert emitted + rest == whole[0]
    assert [call.name for call in calls] == [call.name for call in whole[1]]
    assert "<tool_call>" not in emitted
    assert speech.text == text
