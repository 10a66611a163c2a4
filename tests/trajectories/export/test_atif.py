"""ATIF 1.8 exports follow the rules of the format, and lose no content."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plimsoll.core.errors import TrajectoryError, UsageError
from plimsoll.core.versions import Version
from plimsoll.trajectories.export.atif import to_atif
from plimsoll.trajectories.messages import Message, Other, Text, ToolCall
from plimsoll.trajectories.trajectory import Trajectory
from recorded_sessions import TOOLS, Talk, ask, calling, generated, prompted, result, say, system

ABOUT = {"agent": "shell", "model": "small", "task": "fix-add"}
START = [system("Work."), ask("Fix it.")]

# The fields of each object, with their types; those with a star are required.
CONTENT = "str|list"
FIELDS: dict[str, dict[str, str]] = {
    "trajectory": {
        "schema_version*": "str",
        "session_id": "str",
        "trajectory_id": "str",
        "agent*": "agent",
        "steps*": "[step]",
        "notes": "str",
        "final_metrics": "final",
        "continued_trajectory_ref": "str",
        "extra": "dict",
        "subagent_trajectories": "[trajectory]",
    },
    "agent": {
        "name*": "str",
        "version*": "str",
        "model_name": "str",
        "tool_definitions": "list",
        "extra": "dict",
    },
    "step": {
        "step_id*": "int",
        "timestamp": "str",
        "source*": "str",
        "model_name": "str",
        "reasoning_effort": "str|float",
        "message*": "content",
        "reasoning_content": "str",
        "tool_calls": "[call]",
        "observation": "observation",
        "metrics": "metrics",
        "is_copied_context": "bool",
        "llm_call_count": "int",
        "extra": "dict",
    },
    "call": {
        "tool_call_id*": "str",
        "function_name*": "str",
        "arguments*": "dict",
        "extra": "dict",
    },
    "observation": {"results*": "[result]"},
    "result": {
        "source_call_id": "str",
        "content": "content",
        "subagent_trajectory_ref": "list",
        "extra": "dict",
    },
    "metrics": {
        "prompt_tokens": "int",
        "completion_tokens": "int",
        "cached_tokens": "int",
        "cost_usd": "float",
        "prompt_token_ids": "list",
        "completion_token_ids": "list",
        "logprobs": "list",
        "extra": "dict",
    },
    "final": {
        "total_prompt_tokens": "int",
        "total_completion_tokens": "int",
        "total_cached_tokens": "int",
        "total_cost_usd": "float",
        "total_steps": "int",
        "extra": "dict",
    },
    "text": {"type*": "str", "text*": "str"},
    "image": {"type*": "str", "source*": "source"},
    "source": {"media_type*": "str", "path*": "str"},
}
AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def check(value: Any, kind: str) -> None:
    """Check that a value has a type: one of the objects above, a list of them, or a plain type."""
    if kind.startswith("["):
        for one in value:
            check(one, kind.strip("[]"))
    elif kind == "content":
        if not isinstance(value, str):
            for part in value:
                check(part, part["type"])
    elif kind in FIELDS:
        fields = FIELDS[kind]
        known = {name.rstrip("*"): of for name, of in fields.items()}
        assert value.keys() <= known.keys(), value.keys() - known.keys()
        assert {name[:-1] for name in fields if name.endswith("*")} <= value.keys()
        for name, one in value.items():
            check(one, known[name])
    else:
        assert type(value).__name__ in kind.split("|"), (value, kind)


def check_atif(document: Any) -> None:
    """Check the rules of ATIF 1.8."""
    check(document, "trajectory")
    assert document["schema_version"] == "ATIF-v1.8"
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1)) != []
    for step in steps:
        assert step["source"] in ("system", "user", "agent")
        assert step["source"] == "agent" or not AGENT_ONLY & step.keys()
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        made = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for answered in step.get("observation", {"results": ()})["results"]:
            assert answered.get("source_call_id") in {None, *made}
    inner = document.get("subagent_trajectories", [])
    ids = [one["trajectory_id"] for one in inner]
    assert len(set(ids)) == len(ids)
    for one in inner:
        check_atif(one)


def exported(trajectory: Trajectory, **options: Any) -> Any:
    document = json.loads(msgspec.json.encode(to_atif(trajectory, **options)))
    check_atif(document)
    return document


async def test_every_message_is_a_step_or_an_observation_of_the_call_it_answers(tmp_path: Path):
    talk = Talk(tmp_path, ABOUT)
    calls = (ToolCall("a", "bash", '{"command": "ls"}'), ToolCall("b", "bash", '{"n": [1, 2]}'))
    first = Message("assistant", (Text("Look."),), "Hm.", calls)
    talk.turn(START, first, finish="tool_calls")
    history = [*START, first, result("x", "b"), result("y", "a"), ask("Go on.")]
    talk.turn(history, say("Done."), version=Version(1, 4))
    document = exported(await talk.close(), reward=0.5)
    assert [step["source"] for step in document["steps"]] == [
        "system",
        "user",
        "agent",
        "user",
        "agent",
    ]
    looked = document["steps"][2]
    assert looked["reasoning_content"] == "Hm."
    assert [call["arguments"] for call in looked["tool_calls"]] == [
        {"command": "ls"},
        {"n": [1, 2]},
    ]
    assert looked["observation"]["results"] == [
        {"source_call_id": "b", "content": "x"},
        {"source_call_id": "a", "content": "y"},
    ]
    assert document["agent"] == {
        "name": "shell",
        "version": "unknown",
        "model_name": "small",
        "tool_definitions": json.loads(bytes(TOOLS)),
    }
    assert document["extra"]["reward"] == 0.5
    assert document["steps"][4]["metrics"]["extra"]["version"] == "1:4"


async def test_metrics_hold_the_servers_ids_and_log_probabilities(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    history = [*START, say("One."), ask("More.")]
    talk.turn(history, say("Two."))
    document = exported(await talk.close())
    metrics = document["steps"][-1]["metrics"]
    prompt = prompted(history)
    assert metrics["prompt_token_ids"] == prompt
    assert metrics["completion_token_ids"] == generated(say("Two."))
    assert metrics["logprobs"] == [-0.5] * metrics["completion_tokens"]
    assert metrics["prompt_tokens"] == len(prompt)
    totals = document["final_metrics"]
    assert totals["total_completion_tokens"] == 2 * len(generated(say("Two.")))
    assert totals["total_steps"] == len(document["steps"])


async def test_other_branches_are_embedded_and_shared_steps_are_marked(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn([system("Title?"), ask("Fix it.")], say("Fixing"))
    talk.turn(START, say("One."))
    talk.turn([*START, say("One."), ask("More.")], say("Two."))
    talk.turn([*START, ask("So far: one."), say("Written by others"), ask("On.")], say("Three."))
    document = exported(await talk.close())
    assert document["trajectory_id"] == "s1.1"
    title, rewritten = document["subagent_trajectories"]
    assert {title["session_id"], rewritten["session_id"], document["session_id"]} == {"s1"}
    assert not any("is_copied_context" in step for step in title["steps"])
    marks = [step.get("is_copied_context", False) for step in rewritten["steps"]]
    assert marks == [True, True, False, True, False, False]
    assert rewritten["extra"]["reason"] == "rewritten"
    assert rewritten["extra"]["left"] == "s1.1"
    answered = [
        step["metrics"]["extra"]["version"]
        for one in (document, title, rewritten)
        for step in one["steps"]
        if "metrics" in step
    ]
    assert len(answered) == 4


async def test_retokenized_turns_do_not_start_another_document(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.turn([*START, say("One."), ask("More.")], say("Two."), odd=7)
    trajectory = await talk.close()
    assert trajectory.exchanges[1].branch == "retokenized"
    document = exported(trajectory)
    assert "subagent_trajectories" not in document
    assert len(document["steps"]) == 5


async def test_one_branch_can_be_exported_alone(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.turn([ask("Other.")], say("Two."))
    trajectory = await talk.close()
    document = exported(trajectory, branch=1)
    assert [step["message"] for step in document["steps"]] == ["Other.", "Two."]
    assert "subagent_trajectories" not in document
    with pytest.raises(UsageError, match="no branch 2: its branches are 0 to 1"):
        to_atif(trajectory, branch=2)


@pytest.mark.parametrize("arguments", ["{broken", "[1]", "", '"text"', "null"])
async def test_invalid_arguments_are_kept_unparsed(tmp_path: Path, arguments: str):
    talk = Talk(tmp_path)
    talk.turn(START, calling("bash", arguments))
    (call,) = exported(await talk.close())["steps"][-1]["tool_calls"]
    assert call["arguments"] == {}
    assert call["extra"] == {"unparsed_arguments": arguments}


async def test_a_result_that_answers_no_call_is_kept(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn([result("orphan", "z"), ask("Hm?"), result("late", "y")], say("Yes."))
    steps = exported(await talk.close())["steps"]
    assert [step["source"] for step in steps] == ["system", "user", "agent"]
    assert steps[0]["observation"] == {"results": [{"content": "orphan"}]}
    assert steps[1]["observation"] == {"results": [{"content": "late"}]}


async def test_images_are_named_by_their_location(tmp_path: Path):
    talk = Talk(tmp_path)
    large = f"data:image/png;base64,{'A' * 20_000}"
    odd = [Other(msgspec.Raw(raw)) for raw in (b'{"type":"input_audio"}', b'"\xff"')]
    asked = ask("See:", "https://a/b.jpg", large, "data:image/tiff;base64,AA==")
    asked = msgspec.structs.replace(asked, parts=(*asked.parts, *odd))
    talk.turn([asked], say("Seen."))
    text, jpeg, blob, tiff, audio, invalid = exported(await talk.close())["steps"][0]["message"]
    assert text == {"type": "text", "text": "See:"}
    assert jpeg["source"] == {"media_type": "image/jpeg", "path": "https://a/b.jpg"}
    assert blob["source"]["media_type"] == "image/png"
    assert (tmp_path / blob["source"]["path"]).is_file()
    assert tiff["text"] == "[image: data:image/tiff;base64,AA==]"
    assert audio["text"] == '[{"type":"input_audio"}]'
    assert invalid["text"] == '["\ufffd"]'
    assert {jpeg["source"]["media_type"], blob["source"]["media_type"]} <= IMAGES


async def test_answers_without_token_ids_give_the_reason(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."), ids=False)
    metrics = exported(await talk.close())["steps"][-1]["metrics"]
    assert metrics.keys() == {"prompt_tokens", "completion_tokens", "extra"}
    assert "no token ids" in metrics["extra"]["untrainable"]


async def test_a_trajectory_without_an_answer_is_refused(tmp_path: Path):
    with pytest.raises(TrajectoryError, match="no answer"):
        to_atif(await Talk(tmp_path).close())
