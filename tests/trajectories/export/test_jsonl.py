"""JSON lines: one line per sample, with its tokens and messages."""

import json
from pathlib import Path
from typing import Any

from plimsoll.core.versions import Version
from plimsoll.trajectories.export.jsonl import to_jsonl
from plimsoll.trajectories.trajectory import Trajectory
from recorded_sessions import TOOLS, Talk, ask, generated, say, system

START = [system("Work."), ask("Fix it.")]
LISTS = ("ids", "mask", "logprobs", "versions", "roles")


def lines(trajectory: Trajectory, **options: Any) -> list[Any]:
    return [json.loads(line) for line in to_jsonl(trajectory, **options)]


async def test_a_line_has_an_entry_for_each_token(tmp_path: Path):
    talk = Talk(tmp_path, {"task": "fix-add"})
    talk.turn(START, say("One."), version=Version(0, 3))
    talk.turn([*START, say("One."), ask("More.")], say("Two."), version=Version(1, 4))
    (line,) = lines(await talk.close(), reward=1.0)
    assert len({len(line[name]) for name in LISTS}) == 1
    one, two = generated(say("One.")), generated(say("Two."))
    trained = [id for id, kept in zip(line["ids"], line["mask"], strict=True) if kept]
    assert trained == [*one, *two]
    versions = [version for version in line["versions"] if version is not None]
    assert versions == [[0, 3]] * len(one) + [[1, 4]] * len(two)
    assert {role for role, kept in zip(line["roles"], line["mask"], strict=True) if kept} == {
        "assistant"
    }
    assert [one["role"] for one in line["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert line["reward"] == 1.0
    assert line["about"] == {"task": "fix-add"}
    assert line["tools"] == json.loads(bytes(TOOLS))
    assert (line["branch"], line["reason"], line["turns"]) == (0, "start", [0, 1])


async def test_every_generated_token_is_trained_in_one_line(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.turn([*START, say("One."), ask("More.")], say("Two."), odd=7)
    talk.turn([*START, ask("So far.")], say("Three."))
    got = lines(await talk.close())
    assert [(line["branch"], line["reason"]) for line in got] == [
        (0, "start"),
        (0, "retokenized"),
        (1, "rewritten"),
    ]
    trained = sum(len(generated(say(text))) for text in ("One.", "Two.", "Three."))
    assert sum(sum(line["mask"]) for line in got) == trained


async def test_a_branch_without_token_ids_has_a_line_of_messages(tmp_path: Path):
    talk = Talk(tmp_path, tools=None)
    talk.turn(START, say("One."), ids=False)
    talk.turn([*START, say("One."), ask("More.")], say("Two."), ids=False)
    (line,) = lines(await talk.close())
    assert all(line[name] is None for name in LISTS)
    assert line["messages"][-1]["parts"] == [{"type": "text", "text": "Two."}]
    assert line["untrainable"] == ["the upstream returned no token ids"]
    assert (line["tools"], line["reward"]) == (None, None)


async def test_one_branch_can_be_exported_alone(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.turn([ask("Other.")], say("Two."))
    trajectory = await talk.close()
    assert [line["branch"] for line in lines(trajectory)] == [0, 1]
    assert [line["branch"] for line in lines(trajectory, branch=1)] == [1]
