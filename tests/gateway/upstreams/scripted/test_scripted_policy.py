import json
from pathlib import Path

import pytest
from upstream_parts import BASH, CALL, ask, ids_of, result, sent_back, streamed, text_of, user

from plimsoll.core.errors import UsageError
from plimsoll.gateway.completions import Refusal
from plimsoll.gateway.upstreams.scripted.byte_tokens import decode_ids
from plimsoll.gateway.upstreams.scripted.policy import ScriptedPolicy
from plimsoll.gateway.upstreams.scripted.script import (
    CallSpec,
    Rule,
    Script,
    Turn,
    load_script,
)

TWO_TURNS = Script(
    turns=(
        Turn(reasoning="Look first. ü", text="I look 😀 around.", run="ls -l"),
        Turn(text="All is done."),
    ),
    aside="a title",
)


def tool(name: str, required: tuple[str, ...] = (), **properties: object) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


async def test_a_conversation_that_extends_has_tokens_that_extend():
    policy = ScriptedPolicy(TWO_TURNS)
    first = await policy.answer(ask(user("hi"), tools=[BASH]), CALL)
    conversation = [user("hi"), sent_back(first), result(first, "a.txt")]
    second = await policy.answer(ask(*conversation, tools=[BASH]), CALL)
    assert first.tokens and second.tokens and first.tokens.prompt and second.tokens.prompt
    before = ids_of(first.tokens.prompt) + first.tokens.answer
    assert ids_of(second.tokens.prompt)[: len(before)] == before
    assert "Look first. ü" in decode_ids(before)
    assert second.message.text == "All is done."


async def test_tokens_extend_if_the_agent_re_encodes_arguments():
    policy = ScriptedPolicy(
        lambda _: Turn(calls=(CallSpec(name="bash", arguments={"b": 1, "a": "ü"}),))
    )
    first = await policy.answer(ask(user("hi"), tools=[BASH]), CALL)
    back = sent_back(first)
    function = back["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(dict(reversed(json.loads(function["arguments"]).items())))
    second = await policy.answer(ask(user("hi"), back, result(first, ""), tools=[BASH]), CALL)
    assert first.tokens and second.tokens and first.tokens.prompt and second.tokens.prompt
    before = ids_of(first.tokens.prompt) + first.tokens.answer
    assert ids_of(second.tokens.prompt)[: len(before)] == before


async def test_a_stream_has_the_tokens_and_the_text_of_the_whole_answer():
    policy = ScriptedPolicy(TWO_TURNS)
    request = ask(user("hi"), tools=[BASH])
    whole = await policy.answer(request, CALL)
    chunks = await streamed(policy, request)
    assert whole.tokens
    assert text_of(chunks) == whole.message.text
    assert "".join(chunk.reasoning for chunk in chunks) == whole.message.reasoning
    assert [i for chunk in chunks for i in chunk.ids or ()] == whole.tokens.answer
    assert [p for chunk in chunks for p in chunk.logprobs or ()] == whole.tokens.logprobs
    assert chunks[0].prompt_ids == whole.tokens.prompt
    arguments = "".join(call.arguments for chunk in chunks for call in chunk.calls)
    assert arguments == whole.message.calls[0].arguments
    assert chunks[-1].usage == whole.usage and whole.usage
    assert whole.usage.answer == len(whole.tokens.answer)
    assert sum(chunk.finish is not None for chunk in chunks) == 1


async def test_side_requests_take_no_turn():
    policy = ScriptedPolicy(TWO_TURNS)
    title = await policy.answer(ask(user("a title, please")), CALL)
    assert title.message.text == "a title"
    first = await policy.answer(ask(user("hi"), tools=[BASH]), CALL)
    assert first.message.calls


async def test_assistant_messages_by_others_take_no_turn():
    policy = ScriptedPolicy(TWO_TURNS)
    greeting = {"role": "assistant", "content": "Got it. Thanks for the context!"}
    answer = await policy.answer(ask(user("context"), greeting, user("go"), tools=[BASH]), CALL)
    assert answer.message.calls


async def test_the_calls_of_one_answer_may_come_back_as_several_messages():
    two = (CallSpec(name="bash"), CallSpec(name="bash"))
    policy = ScriptedPolicy(Script(turns=(Turn(calls=two), Turn(run="two"), Turn(run="three"))))
    first = await policy.answer(ask(user("hi"), tools=[BASH]), CALL)
    whole = sent_back(first)
    apart = [{**whole, "tool_calls": [call]} for call in whole["tool_calls"]]
    second = await policy.answer(ask(user("hi"), *apart, tools=[BASH]), CALL)
    assert json.loads(second.message.calls[0].arguments) == {"command": "two"}


@pytest.mark.parametrize(
    ("offered", "arguments"),
    [
        (tool("Bash", ("command",), command={"type": "string"}), {"command": "make"}),
        (tool("exec_command", ("cmd",), cmd={"type": "string"}), {"cmd": "make"}),
        (tool("shell", command={"type": "array"}), {"command": ["bash", "-lc", "make"]}),
        (
            tool(
                "run_shell_command",
                ("command", "is_background"),
                command={"type": "string"},
                is_background={"type": "boolean"},
            ),
            {"command": "make", "is_background": False},
        ),
    ],
)
async def test_a_command_is_run_by_any_shell_tool_of_the_agent(offered, arguments):
    policy = ScriptedPolicy(Script(turns=(Turn(run="make"),)))
    others = [
        tool("read_file", path={"type": "string"}),
        {"type": "function", "function": {"name": "x"}},
    ]
    answer = await policy.answer(ask(user("hi"), tools=[*others, offered]), CALL)
    (call,) = answer.message.calls
    assert call.name == offered["function"]["name"]
    assert json.loads(call.arguments) == arguments


async def test_the_end_is_signalled_in_the_agents_way():
    script = Script(turns=(Turn(submit=True, text="Done."),))
    plain = await ScriptedPolicy(script).answer(ask(user("hi"), tools=[BASH]), CALL)
    assert (plain.message.text, plain.message.calls) == ("Done.", ())
    line = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    printed = await ScriptedPolicy(script).answer(ask(user(f"echo {line}"), tools=[BASH]), CALL)
    assert json.loads(printed.message.calls[0].arguments) == {"command": f"echo {line}"}
    submit = await ScriptedPolicy(script).answer(ask(user("hi"), tools=[tool("submit")]), CALL)
    assert submit.message.calls[0].name == "submit"


async def test_a_rule_answers_matching_requests_in_any_turn():
    rules = (
        Rule(when="/weather in \\w+/", text="Rain."),
        Rule(when="TOPIC", where="system", text="{}"),
    )
    policy = ScriptedPolicy(Script(rules=rules, turns=(Turn(text="first"),)))
    assert (await policy.answer(ask(user("weather in Rome?")), CALL)).message.text == "Rain."
    system = {"role": "system", "content": "Is this a new topic?"}
    assert (await policy.answer(ask(system, user("hi")), CALL)).message.text == "{}"
    assert (await policy.answer(ask(user("topic")), CALL)).message.text == "first"


async def test_a_failure_happens_as_often_as_the_script_says():
    policy = ScriptedPolicy(Script(turns=(Turn(text="at last", failure=503, times=2),)))
    for _ in range(2):
        with pytest.raises(Refusal) as refusal:
            await policy.answer(ask(), CALL)
        assert refusal.value.kind == "busy"
    assert (await policy.answer(ask(), CALL)).message.text == "at last"


@pytest.mark.parametrize("failure", [500, 429, "drop"])
async def test_a_failure_instead_of_an_answer_comes_before_a_stream_begins(failure):
    policy = ScriptedPolicy(Script(turns=(Turn(text="never heard", failure=failure),)))
    with pytest.raises(Refusal):
        async with policy.stream(ask(), CALL):
            pytest.fail("the stream began")


async def test_a_cut_stream_has_sent_pieces():
    policy = ScriptedPolicy(
        Script(turns=(Turn(text="some words that are cut off", failure="cut"),))
    )
    came = []
    with pytest.raises(Refusal) as refusal:
        async with policy.stream(ask(), CALL) as pieces:
            async for chunks in pieces:
                came.extend(chunks)
    assert refusal.value.kind == "upstream"
    assert 0 < len(text_of(came)) < len("some words that are cut off")


async def test_a_script_is_loaded_from_a_file(tmp_path: Path):
    path = tmp_path / "script.toml"
    path.write_text(
        '[[turns]]\ntext = "one"\nrun = "ls"\n[[turns]]\ntext = "two"\n'
        '[[rules]]\nwhen = "title"\ntools = false\ntext = "A title"\n'
    )
    policy = ScriptedPolicy(path)
    assert (await policy.answer(ask(user("hi"), tools=[BASH]), CALL)).message.calls
    assert (await policy.answer(ask(user("a title?")), CALL)).message.text == "A title"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[turns]]\ntxt = 'x'", r"unknown key turns.0.txt \(valid keys: text, reasoning, run, "),
        ("[[rules]]\nif = 'x'", r"unknown key rules.0.if \(valid keys: .*, when, where, tools\)"),
        ("[[turns]]\ncalls = [{name = 'x', with = 1}]", r"\(valid keys: name, arguments\)"),
        ("[run]\nsteps = 1", r"unknown key run \(valid keys: turns, rules, aside, otherwise\)"),
        ("[[turns]]\ntext = 1", r"turns.0.text: "),
        ("[[turns", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_mistake_in_a_script_names_the_file_and_the_key(tmp_path: Path, text, expected):
    path = tmp_path / "script.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=expected) as error:
        load_script(path)
    assert str(path) in str(error.value)


async def test_the_tokens_of_a_prompt_are_counted():
    policy = ScriptedPolicy(TWO_TURNS)
    request = ask(user("hi"), tools=[BASH])
    answer = await policy.answer(request, CALL)
    assert answer.tokens and answer.tokens.prompt
    assert await policy.count(request, CALL) == len(ids_of(answer.tokens.prompt))
