"""Files of an earlier trial on this host are never part of a later trial."""

from pathlib import Path

import pytest

from helpers import HOST, PlainAgent, check_graded, check_void, write_task_folder
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.trials.verdicts import Cause

WRITES_ONE = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\ntouch /logs/artifacts/made\n"
WRITES_NOTHING = "#!/bin/bash\ntrue\n"
REPORTS = {
    "reward.txt": "1\n",
    "reward.json": '{"reward": 1}',
    "ctrf.json": '{"results": {"summary": {"tests": 1, "passed": 1, "failed": 0}}}',
}


class StaleFiles(PlainAgent):
    """An agent that adds files of a dead trial to the trial's folder while it works."""

    name = "haunted"

    def __init__(self, verifier: Path) -> None:
        self._logs = verifier / "logs"

    async def run(self, assignment: Assignment) -> Outcome:
        del assignment
        self._logs.mkdir(parents=True)
        for name, text in REPORTS.items():
            (self._logs / name).write_text(text)
        return Outcome()


@pytest.mark.parametrize("several", [False, True], ids=["one step", "steps"])
async def test_a_reward_file_that_is_not_from_the_sandbox_is_not_read(tmp_path, run, several: bool):
    tests = "steps/first/tests/test.sh" if several else "tests/test.sh"
    content = {"environment/Dockerfile": HOST, "instruction.md": "Do it.\n", tests: WRITES_NOTHING}
    if several:
        content["steps/first/instruction.md"] = "Do it.\n"
    toml = '[[steps]]\nname = "first"\n' if several else ""
    task = write_task_folder(tmp_path / "tasks/a", content, toml)
    verifier_folder = tmp_path / "trials/a.1" / ("steps/first" if several else ".") / "verifier"
    ran = await run(task, StaleFiles(verifier_folder))
    check_void(ran, Cause.GRADER, "wrote neither reward.json nor reward.txt")
    assert not list(verifier_folder.rglob("reward*"))
    assert [path.name for path in verifier_folder.iterdir() if path.name.startswith(".")] == []


async def test_a_second_trial_of_the_same_name_has_its_own_folder(write_task, run):
    first = await run(write_task(test=WRITES_ONE), "echo first; touch /logs/agent/first")
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second = await run(write_task(test=WRITES_NOTHING), "true")
    check_graded(first, 1.0)
    check_void(second, Cause.GRADER, "wrote neither")
    assert second.folder == first.folder.with_name(f"{first.folder.name}~2")
    assert first.file.trial != second.file.trial
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before
    for name in ("artifacts/made", "agent/logs/first"):
        assert (first.folder / name).exists()
        assert not (second.folder / name).exists()
