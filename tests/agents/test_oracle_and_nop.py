"""The agents without a policy: the oracle runs the solution, nop does nothing."""

from pathlib import Path

import pytest

from helpers import (
    HOST,
    FinishedTrial,
    check_graded,
    check_void,
    long_time,
    need_several_users,
    processes_with,
    write_task_folder,
)
from plimsoll.agents.registry import AGENTS, make_agent
from plimsoll.core.errors import UsageError
from plimsoll.sandboxes.protocol import Backend
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Cause

GRADER = "#!/bin/bash\n([ -e /app/done ] && echo 1 || echo 0) > /logs/verifier/reward.txt\n"


@pytest.fixture
def run(backend: Backend, tmp_path: Path):
    """Write a task with this solution, and run the named agent on it."""

    async def run(agent: str, solution: str | None, toml: str = "", **files: str) -> FinishedTrial:
        content = {
            "instruction.md": "Make /app/done.\n",
            "environment/Dockerfile": HOST,
            "tests/test.sh": GRADER,
            **files,
        }
        if solution is not None:
            content["solution/solve.sh"] = solution
        task = write_task_folder(tmp_path / "task", content, toml)
        result = await run_trial(
            task,
            attempt=1,
            agent=make_agent(agent),
            backend=backend,
            run="test",
            directory=tmp_path / "trial",
        )
        return FinishedTrial(result.verdict, tmp_path / "trial", result.phases)

    return run


async def test_the_oracle_runs_the_solution_and_nop_does_not(run):
    check_graded(await run("oracle", "touch /app/done\n"), 1.0)
    check_graded(await run("nop", "touch /app/done\n"), 0.0)


async def test_the_output_of_the_solution_is_stored(run):
    ran = await run("oracle", "#!/bin/sh\necho solving; echo hm >&2\ntouch done\n")
    assert ran.read("agent/stdout.txt") == "solving\n"
    assert ran.read("agent/stderr.txt") == "hm\n"


async def test_the_solution_has_its_files_its_user_and_its_variables(run):
    need_several_users()
    toml = '[agent]\nuser = "daemon"\n[solution.env]\nHINT = "42"\n'
    script = '#!/bin/bash\ncd "$(dirname "$0")"; cat data/hint; echo $HINT; id -un\n'
    ran = await run("oracle", script, toml, **{"solution/data/hint": "look here\n"})
    assert ran.read("agent/stdout.txt") == "look here\n42\ndaemon\n"


async def test_a_solution_may_be_in_any_language(run):
    ran = await run("oracle", "#!/usr/bin/env python3\nopen('/app/done', 'w')\n")
    check_graded(ran, 1.0)


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        ("touch /app/done\necho broken >&2\nexit 3\n", ("solve.sh", "exit 3", "broken")),
        ("touch /app/done\nkill -9 $$\n", ("solve.sh", "signal 9")),
        ("#!/no/such/shell\n", ("solve.sh",)),
        (None, ("no solution/solve.sh",)),
    ],
    ids=["exits", "killed", "no-interpreter", "absent"],
)
async def test_a_solution_that_fails_is_the_tasks_fault(run, solution, words):
    check_void(await run("oracle", solution), Cause.TASK, *words)


async def test_a_solution_that_times_out_is_the_tasks_fault(run):
    time = long_time()
    ran = await run("oracle", f"touch /app/done; sleep {time}", "[agent]\ntimeout_sec = 0.3\n")
    check_void(ran, Cause.TASK, "0.3 s")
    assert not processes_with(time)


async def test_background_processes_of_the_solution_are_dead_before_the_tests(run):
    time = long_time()
    grader = f"{GRADER}grep -l {time} /proc/[0-9]*/cmdline\n"
    ran = await run(
        "oracle", f"touch /app/done; setsid sleep {time} &", **{"tests/test.sh": grader}
    )
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt") == ""


def test_agents_are_made_by_name():
    assert AGENTS[:3] == ("oracle", "nop", "shell")
    assert set(AGENTS[3:]) == {"claude-code", "codex", "opencode", "qwen-code", "mini-swe-agent"}
    for name in AGENTS:
        agent = make_agent(name)
        assert agent.name == name
        assert agent.needs_policy is (name not in ("oracle", "nop"))
        assert bool(agent.version) is agent.needs_policy
        assert not agent.mounts


def test_an_unknown_agent_is_refused_with_a_list_of_agents():
    with pytest.raises(UsageError, match=r"'oracel'.*oracle, nop, shell, claude-code"):
        make_agent("oracel")
