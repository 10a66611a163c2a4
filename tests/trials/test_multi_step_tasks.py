"""Multi-step tasks: the order of steps, their isolation, and the combined verdict."""

import pytest

from helpers import (
    HOST,
    PlainAgent,
    check_graded,
    check_void,
    need_several_users,
    write_task_folder,
)
from plimsoll.agents.oracle import Oracle
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.trials.verdicts import Cause


def writes(reward: str) -> str:
    return f"#!/bin/bash\necho {reward} > /logs/verifier/reward.txt\n"


def writes_json(text: str) -> str:
    return f"#!/bin/bash\necho '{text}' > /logs/verifier/reward.json\n"


@pytest.fixture
def write_steps(tmp_path):
    """Write a task with steps given as `name=test.sh`."""

    def write(steps, *, toml="", step_toml=None, files=None):
        content = {"environment/Dockerfile": HOST, **(files or {})}
        tables = toml
        for name, test in steps.items():
            content.setdefault(f"steps/{name}/instruction.md", f"Do {name}.\n")
            if test:
                content[f"steps/{name}/tests/test.sh"] = test
            tables += f'[[steps]]\nname = "{name}"\n{(step_toml or {}).get(name, "")}'
        return write_task_folder(tmp_path / "tasks/steps", content, tables)

    return write


class Scripted(PlainAgent):
    """An agent with a script for each step."""

    name = "scripted"

    def __init__(self, **scripts: str) -> None:
        self._scripts = scripts
        self.instructions: list[str] = []

    async def run(self, assignment) -> Outcome:
        self.instructions.append(assignment.instruction)
        script = self._scripts.get(assignment.step.name, "true")
        await assignment.sandbox.exec(script, on_output=assignment.on_output)
        return Outcome(Ending.REFUSED if script == "false" else Ending.SUBMITTED)


@pytest.mark.parametrize(("strategy", "reward"), [(None, 0.5), ("mean", 0.5), ("final", 0.25)])
async def test_the_reward_is_the_mean_of_the_steps_or_the_last_one(
    write_steps, run, strategy, reward
):
    toml = f'multi_step_reward_strategy = "{strategy}"\n' if strategy else ""
    steps = {"one": writes("1"), "two": writes("0.25"), "three": writes("0.25")}
    ran = await run(write_steps(steps, toml=toml))
    check_graded(ran, reward)
    file = ran.file
    assert list(file.steps) == ["one", "two", "three"]
    assert [verdict.reward for verdict in file.steps.values()] == [1.0, 0.25, 0.25]
    assert set(file.tests) == {"one", "two", "three"}


async def test_named_rewards_are_averaged_by_name(write_steps, run):
    steps = {"one": writes_json('{"reward": 1, "speed": 1}'), "two": writes_json('{"reward": 0}')}
    ran = await run(write_steps(steps))
    check_graded(ran, 0.5)
    assert ran.verdict.rewards == {"reward": 0.5, "speed": 0.5}


async def test_steps_run_in_the_order_of_the_file_on_one_sandbox(write_steps, run):
    test = "#!/bin/bash\ncat /app/log\necho 1 > /logs/verifier/reward.txt\n"
    agent = Scripted(b="echo b >> log; echo b works", a="echo a >> log")
    ran = await run(write_steps({"b": test, "a": test}), agent)
    check_graded(ran, 1.0)
    assert agent.instructions == ["Do b.\n", "Do a.\n"]
    assert ran.read("steps/b/agent/stdout.txt") == "b works\n"
    assert ran.read("steps/b/verifier/stdout.txt") == "b\n"
    assert ran.read("steps/a/verifier/stdout.txt") == "b\na\n"


@pytest.mark.parametrize(
    ("min_reward", "first", "continues"),
    [
        ("0.5", writes("0.5"), True),
        ("0.5", writes("0.4"), False),
        ("{ speed = 0.5 }", writes_json('{"reward": 0, "speed": 0.5}'), True),
        ("{ speed = 0.5 }", writes_json('{"reward": 1, "speed": 0.4}'), False),
        ("{ speed = 0.5 }", writes_json('{"reward": 1}'), False),
    ],
)
async def test_a_step_below_its_minimum_reward_is_the_last(
    write_steps, run, min_reward, first, continues
):
    task = write_steps(
        {"one": first, "two": writes("0")}, step_toml={"one": f"min_reward = {min_reward}\n"}
    )
    ran = await run(task)
    assert list(ran.file.steps) == (["one", "two"] if continues else ["one"])
    mean = ran.file.steps["one"].reward / 2 if continues else ran.file.steps["one"].reward
    check_graded(ran, mean)


@pytest.mark.parametrize(
    ("second", "cause", "word"),
    [
        ("#!/bin/bash\nexit 1\n", Cause.GRADER, "neither"),
        ("#!/bin/bash\npython3 -c 'import lost'; echo 0 > /logs/verifier/reward.txt\n", None, ""),
        ("", Cause.TASK, "tests/test.sh"),
    ],
    ids=["crashes", "zero-without-tests", "no-tests"],
)
async def test_a_step_that_cannot_be_graded_voids_the_trial(write_steps, run, second, cause, word):
    ran = await run(write_steps({"one": writes("1"), "two": second, "three": writes("1")}))
    check_void(ran, cause or Cause.GRADER, "step two", word)
    assert list(ran.file.steps) == ["one", "two"]
    assert not (ran.folder / "steps/three").exists()


async def test_an_unusual_ending_of_a_step_is_that_of_the_trial(write_steps, run):
    ran = await run(write_steps({"one": writes("1"), "two": writes("1")}), Scripted(one="false"))
    check_graded(ran, 1.0)
    assert ran.verdict.ending is Ending.REFUSED


async def test_a_step_uploads_its_files_and_runs_its_set_up(write_steps, run):
    files = {
        "steps/two/workdir/data.txt": "raw\n",
        "steps/two/workdir/setup.sh": "#!/bin/bash\ntr a-z A-Z < data.txt > ready.txt\n",
    }
    look = "cat ready.txt || true"
    ran = await run(
        write_steps({"one": writes("1"), "two": writes("1")}, files=files),
        Scripted(one=look, two=look),
    )
    check_graded(ran, 1.0)
    assert "No such file" in ran.read("steps/one/agent/stderr.txt")
    assert ran.read("steps/two/agent/stdout.txt") == "RAW\n"


async def test_a_failed_set_up_of_a_step_voids_the_trial(write_steps, run):
    files = {"steps/two/workdir/setup.sh": "git clone -q https://example.invalid/x\n"}
    ran = await run(write_steps({"one": writes("1"), "two": writes("1")}, files=files))
    check_void(ran, Cause.SANDBOX, "steps/two/workdir/setup.sh", "exit 128")
    assert list(ran.file.steps) == ["one"]


async def test_the_agent_does_not_see_the_tests_of_an_earlier_step(write_steps, run):
    look = "ls -A /tests /logs/verifier"
    leave = f"{writes('1')}(sleep 60; echo) & cp /tests/test.sh /logs/verifier/copy.sh\n"
    ran = await run(
        write_steps({"one": leave, "two": writes("1")}), Scripted(two=f"{look}; ps ax | grep sleep")
    )
    check_graded(ran, 1.0)
    seen = ran.read("steps/two/agent/stdout.txt")
    assert "test.sh" not in seen
    assert "copy.sh" not in seen
    assert "sleep 60" not in seen


async def test_a_step_without_a_reward_does_not_inherit_the_last_one(write_steps, run):
    ran = await run(write_steps({"one": writes("1"), "two": "#!/bin/bash\ntrue\n"}))
    check_void(ran, Cause.GRADER, "step two", "neither")


async def test_tests_of_the_task_are_shared_and_those_of_a_step_replace_them(write_steps, run):
    files = {
        "tests/test.sh": "#!/bin/bash\ncat /tests/a /tests/b; echo 1 > /logs/verifier/reward.txt\n",
        "tests/a": "shared a\n",
        "tests/b": "shared b\n",
        "steps/two/tests/b": "own b\n",
    }
    ran = await run(write_steps({"one": "", "two": ""}, files=files))
    check_graded(ran, 1.0)
    assert ran.read("steps/one/verifier/stdout.txt") == "shared a\nshared b\n"
    assert ran.read("steps/two/verifier/stdout.txt") == "shared a\nown b\n"
    assert ran.file.tests["one"] != ran.file.tests["two"]


async def test_each_step_has_its_own_time_limit_and_user(write_steps, run):
    need_several_users()
    toml = "[agent]\ntimeout_sec = 60\n"
    step_toml = {
        "one": '[steps.agent]\ntimeout_sec = 0.3\n[steps.verifier]\nuser = "nobody"\n',
    }
    test = "#!/bin/bash\nid -un\necho 1 > /logs/verifier/reward.txt\n"
    ran = await run(
        write_steps({"one": test, "two": test}, toml=toml, step_toml=step_toml),
        Scripted(one="sleep 60", two="sleep 0.4"),
    )
    assert [verdict.ending for verdict in ran.file.steps.values()] == ["budget", "submitted"]
    assert ran.read("steps/one/verifier/stdout.txt") == "nobody\n"
    assert ran.read("steps/two/verifier/stdout.txt") == "root\n"


async def test_the_oracle_runs_the_solution_of_each_step(write_steps, run):
    files = {
        "steps/one/solution/solve.sh": "echo 1 > /app/one\n",
        "steps/two/solution/solve.sh": "cat /app/one; ls /solution\n",
    }
    ran = await run(write_steps({"one": writes("1"), "two": writes("1")}, files=files), Oracle())
    check_graded(ran, 1.0)
    assert ran.read("steps/two/agent/stdout.txt") == "1\nsolve.sh\n"


async def test_the_health_check_of_a_step_delays_its_agent(write_steps, run):
    check = "[steps.healthcheck]\ncommand = 'test -e /app/ready'\nretries = 1\n"
    task = write_steps({"one": writes("1"), "two": writes("1")}, step_toml={"two": check})
    check_graded(await run(task, Scripted(one="touch ready"), 1), 1.0)
    check_void(await run(task, Scripted(), 2), Cause.SANDBOX, "test -e /app/ready")


async def test_a_separate_verifier_sees_only_artifacts_of_its_own_step(write_steps, run):
    toml = 'artifacts = ["/app/site"]\n[verifier]\nenvironment_mode = "separate"\n'
    look = f"{writes('1')}cd /app/site && find . -type f; find /logs/artifacts -type f\n"
    agent = Scripted(
        one="mkdir site; touch site/old /logs/artifacts/first",
        two="rm site/old /logs/artifacts/first; touch site/new",
    )
    ran = await run(write_steps({"one": look, "two": look}, toml=toml), agent)
    check_graded(ran, 1.0)
    assert ran.read("steps/one/verifier/stdout.txt") == "./old\n/logs/artifacts/first\n"
    assert ran.read("steps/two/verifier/stdout.txt") == "./new\n"
