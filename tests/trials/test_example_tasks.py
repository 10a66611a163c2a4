"""Example tasks: valid ones give the oracle 1 and nop 0, broken ones are void."""

import asyncio
from pathlib import Path

import pytest

from helpers import check_void, need_several_users
from plimsoll.agents.nop import Nop
from plimsoll.agents.oracle import Oracle
from plimsoll.tasks.loader import find_tasks, load_task
from plimsoll.trials.verdicts import Cause, Graded

EXAMPLES = Path(__file__).parents[2] / "examples"
SOUND = [*find_tasks(EXAMPLES / "tasks"), *find_tasks(EXAMPLES / "root")]
BROKEN = find_tasks(EXAMPLES / "broken")


def test_there_are_examples_of_both_kinds():
    assert len(SOUND) >= 16
    assert len(BROKEN) >= 16


@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.name)
async def test_a_valid_task_gives_the_oracle_1_and_nop_0(run, path):
    task = load_task(path)
    assert not task.unknown_keys
    if any(step.agent.user or step.verifier.user for step in task.steps):
        need_several_users()
    solved, untouched = await asyncio.gather(run(task, Oracle(), 1), run(task, Nop(), 2))
    assert isinstance(solved.verdict, Graded), solved.verdict
    assert solved.verdict.reward == 1.0
    assert isinstance(untouched.verdict, Graded), untouched.verdict
    assert untouched.verdict.reward < 0.2


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
async def test_a_broken_task_is_void_for_its_documented_reason(run, path):
    task = load_task(path)
    expected = task.config.metadata
    ran = await run(task, Oracle())
    check_void(ran, Cause(expected["expected_cause"]))
    assert expected["expected_reason"].lower() in ran.verdict.reason.lower()
