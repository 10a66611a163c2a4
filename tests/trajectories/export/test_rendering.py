"""Trajectories in a terminal: readable, in order, and harmless."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from plimsoll.core.text import safe_text
from plimsoll.core.versions import Version
from plimsoll.trajectories.export.conversations import choose_branches, conversations
from plimsoll.trajectories.export.rendering import fold, render, summary_line, token_table
from plimsoll.trajectories.trajectory import Trajectory
from recorded_sessions import Talk, ask, calling, result, say, system

START = [system("Work."), ask("Fix it.")]


def shown(
    trajectory: Trajectory, *, branch: int | None = None, full: bool = False, width: int = 80
) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=True, color_system=None, markup=False, emoji=False
    )
    chosen = choose_branches(conversations(trajectory), branch)
    for part in render(chosen, trajectory.troubles, full=full, alone=branch is not None):
        console.print(part)
    return file.getvalue()


async def test_messages_are_shown_in_order_with_their_roles(tmp_path: Path):
    talk = Talk(tmp_path)
    called = calling("bash", '{"command": "ls -l\\nwc"}', text="I look.")
    talk.turn(START, called, finish="tool_calls", version=Version(0, 3))
    talk.turn([*START, called, result("exit 0\na.py")], say("Done.", "All is well."))
    assert shown(await talk.close()).splitlines() == [
        "",
        "system     Work.",
        "user       Fix it.",
        "assistant  turn 1 · 17 → 17 tokens · version 3 · 0.5 s · tool_calls",
        "           I look.",
        "           bash command: ls -l",
        "               wc",
        "tool       exit 0",
        "           a.py",
        "assistant  turn 2 · 48 → 18 tokens · version 0 · 0.5 s · stop",
        "           All is well.",
        "           Done.",
    ]


async def test_several_arguments_are_shown_on_separate_lines(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, calling("write", '{"path": "a.py", "lines": [1, 2]}'))
    assert "write\n             path: a.py\n             lines: [1, 2]\n" in shown(
        await talk.close()
    )


async def test_invalid_arguments_are_shown_unparsed(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, calling("bash", "{broken"))
    assert "bash {broken  (not a JSON object)" in shown(await talk.close())


async def test_a_branch_is_marked_at_its_start_and_shared_messages_are_not_repeated(
    tmp_path: Path,
):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.turn([*START, say("One."), ask("More.")], say("Two."))
    talk.turn([*START, ask("So far: one.")], say("Three."))
    trajectory = await talk.close()
    text = shown(trajectory)
    head, first, second = text.split("── branch ")
    assert head.strip() == ""
    before, after = first.split("↳ branch 1 starts here: the agent rewrote history")
    assert "Fix it." in before and "One." not in before
    assert "One." in after and "Two." in after
    assert second.startswith("1 · the agent rewrote history · shares 2 messages with branch 0\n")
    assert "Fix it." not in second
    assert "Fix it." in shown(trajectory, branch=1)
    assert "Two." not in shown(trajectory, branch=1)


async def test_retokenized_turns_do_not_start_a_branch_but_are_marked(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.turn([*START, say("One."), ask("More.")], say("Two."), odd=7)
    text = shown(await talk.close())
    assert "branch" not in text
    assert "stop · retokenized" in text


async def test_troubles_are_shown_where_they_happened(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."))
    talk.recorder.trouble("upstream", "closed\nearly \x1b[2J")
    talk.now = 4e9
    talk.turn([*START, say("One."), ask("More.")], say("Two."))
    talk.recorder.trouble("budget", "no turns left")
    text = shown(await talk.close())
    order = ["One.", "trouble    upstream: closed", "turn 2", "Two."]
    assert [text.index(one) for one in order] == sorted(text.index(one) for one in order)
    assert "\\x1b[2J" in text


async def test_an_untrainable_answer_gives_the_reason(tmp_path: Path):
    talk = Talk(tmp_path)
    talk.turn(START, say("One."), ids=False)
    trajectory = await talk.close()
    assert "not trainable: the upstream returned no token ids" in shown(trajectory, width=200)
    file = io.StringIO()
    Console(file=file, width=200).print(token_table(conversations(trajectory)))
    assert "none: the upstream returned no token ids" in file.getvalue()


async def test_control_sequences_do_not_reach_the_terminal(tmp_path: Path):
    evil = "a\x1b]0;title\x07b\x9b2Jc\rd\u202ee\x00f\u2028g"
    talk = Talk(tmp_path)
    talk.turn([system(evil), ask(evil)], say(evil, reasoning=evil))
    talk.turn([result(evil, evil)], calling(evil, f'{{"{"x"}": "\\u001b[2J"}}'))
    talk.turn([ask("x")], calling("bash", evil))
    text = re.sub(r"\x1b\[\d*(;\d+)*m", "", shown(await talk.close(), full=True))
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "a\\x1b]0;title\\x07b\\x9b2Jc\\rd\\u202ee\\x00f" in text.replace("\n           ", "")


@pytest.mark.parametrize("width", [30, 80, 120])
async def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(tmp_path: Path, width: int):
    talk = Talk(tmp_path)
    talk.turn(
        [system("word " * 100), ask("x" * 500 + "\n\ny"), result("漢字" * 60)], say("a b " * 50)
    )
    lines = shown(await talk.close(), width=width).splitlines()
    console = Console(width=500)
    assert max(console.measure(line).maximum for line in lines) <= width
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    "text",
    ["\n".join(str(line) for line in range(1000)), "x" * 10_000, "word " * 5000],
    ids=["lines", "one-line", "words"],
)
def test_a_long_text_is_folded_with_the_number_of_omitted_characters(text: str):
    folded = fold(text, full=False)
    head, note, tail = re.split(r"\n… (.*) …\n", folded)
    assert text.startswith(head) and text.endswith(tail)
    left = len(text) - len(head) - len(tail)
    assert note == f"{left:,} of {len(text):,} characters left out, --full shows them"
    assert len(head) + len(tail) <= 2000
    assert fold(text, full=True) == text


def test_a_short_text_is_not_folded():
    text = "\n".join("x" * 100 for _ in range(24))
    assert fold(text, full=False) == text


def test_plain_text_is_shown_unchanged():
    text = "def f():\n    return 'é 漢 😀'"
    assert safe_text(text) == text
    assert safe_text("a\tb\r\nc\u00a0d") == "a   b\nc d"


async def test_the_summary_counts_turns_tokens_versions_and_branches(tmp_path: Path):
    talk = Talk(tmp_path, {"model": "small\x1b"})
    talk.turn(START, say("One."), version=Version(0, 3))
    talk.turn([ask("Other.")], say("Two."), version=Version(0, 5))
    trajectory = await talk.close("budget")
    assert summary_line(trajectory, conversations(trajectory)) == (
        "2 turns · 10 tokens generated, longest prompt 17 · versions 3 to 5 · 2 branches · "
        "small\\x1b · ended: budget"
    )
