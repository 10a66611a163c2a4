"""A trial: its phases, its files, and the permissions of each phase."""

import asyncio
import time
from pathlib import Path

import pytest

from helpers import (
    PlainAgent,
    check_graded,
    check_void,
    long_time,
    need_several_users,
    processes_with,
)
from plimsoll.agents.oracle import Oracle
from plimsoll.agents.protocol import Assignment, Outcome
from plimsoll.core.endings import Ending
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Cause, Graded

PASS = "echo 1 > /logs/verifier/reward.txt\n"
INTERFACES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort\n"


def host_interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir() if (path / "mtu").exists())


# Files and records.


async def test_a_trial_writes_its_verdict_phases_and_output(write_task, run):
    test = f"{PASS}echo from the tests; echo to stderr >&2; echo log > /logs/verifier/more.txt\n"
    task = write_task(test=test, toml='artifacts = ["/app/made"]\n')
    agent = "echo working; echo hm >&2; echo kept > made; echo x > /logs/agent/trace.jsonl"
    ran = await run(task, agent, attempt=3)
    file = ran.file
    assert (file.task, file.attempt, file.agent, file.backend) == ("task", 3, "shell", "local")
    assert file.verdict == ran.verdict == Graded(1.0, Ending.SUBMITTED, {"reward": 1.0})
    assert file.steps == {"main": ran.verdict}
    assert list(file.phases) == [
        *("build", "start", "agent set-up", "step set-up", "agent", "kill"),
        *("verifier", "artifacts", "close"),
    ]
    assert 0 < sum(file.phases.values()) <= file.seconds
    assert ran.read("agent/stdout.txt") == "working\n"
    assert ran.read("agent/stderr.txt") == "hm\n"
    assert ran.read("agent/logs/trace.jsonl") == "x\n"
    assert ran.read("verifier/stdout.txt") == "from the tests\n"
    assert ran.read("verifier/stderr.txt") == "to stderr\n"
    assert ran.read("verifier/logs/more.txt") == "log\n"
    assert ran.read("artifacts/made") == "kept\n"


async def test_phases_are_reported_in_order(write_task, backend, tmp_path):
    toml = '[environment.healthcheck]\ncommand = "true"\n'
    files = {"solution/solve.sh": "true\n"}
    seen: list[str] = []
    await run_trial(
        write_task(toml=toml, files=files),
        attempt=1,
        agent=Oracle(),
        backend=backend,
        run="test",
        directory=tmp_path / "trial",
        on_phase=seen.append,
    )
    assert seen == [
        *("build", "start", "healthcheck", "agent set-up", "step set-up", "agent", "kill"),
        *("verifier", "artifacts", "close"),
    ]


async def test_the_digest_of_the_tests_changes_with_them(write_task, run):
    task = write_task(files={"tests/expected.txt": "1\n"})
    first, again = await run(task, attempt=1), await run(task, attempt=2)
    (task.path / "tests/expected.txt").write_text("2\n")
    changed = await run(task, attempt=3)
    assert len(first.file.tests["main"]) == 64
    assert first.file.tests == again.file.tests != changed.file.tests


async def test_all_numbers_of_a_reward_are_kept(write_task, run):
    test = 'echo \'{"speed": 0.5, "style": 1}\' > /logs/verifier/reward.json'
    ran = await run(write_task(test=test))
    assert ran.verdict.rewards == {"speed": 0.5, "style": 1.0}
    assert ran.verdict.reward == 0.75


class Named(PlainAgent):
    """Records its sandbox."""

    name = "named"

    async def run(self, assignment: Assignment) -> Outcome:
        self.sandbox, self.labels = assignment.sandbox.id, assignment.sandbox.labels
        return Outcome()


async def test_a_verdict_names_the_sandbox_of_the_agent(write_task, run):
    agent = Named()
    ran = await run(write_task(), agent)
    assert ran.file.sandbox == agent.sandbox
    broken = await run(write_task(dockerfile="FROM host\nRUN false\n"), agent, attempt=2)
    assert broken.file.sandbox == ""


async def test_a_sandbox_expires_one_day_after_the_timeouts_of_its_trial(write_task, run):
    agent, day = Named(), 86_400.0
    toml = (
        "[environment]\nbuild_timeout_sec = 100\n"
        "[agent]\ntimeout_sec = 300000\n"
        "[verifier]\ntimeout_sec = 5000\ncollect = [{ command = 'true', timeout_sec = 70 }]\n"
    )
    check_graded(await run(write_task(toml=toml), agent), 1.0)
    assert abs(agent.labels.expires - time.time() - 305_170 - day) < 60
    check_graded(await run(write_task("patient"), agent), 1.0)
    assert agent.labels.expires > time.time() + 30 * day  # the agent has no time limit


# Set-up.


async def test_a_set_up_command_that_fails_voids_the_trial(write_task, run):
    ran = await run(write_task(dockerfile="FROM host\nRUN true\nRUN echo oh no >&2; exit 7\n"))
    check_void(ran, Cause.SANDBOX, "Dockerfile:3", "exit 7", "oh no")
    assert "agent" not in ran.file.phases


async def test_a_health_check_is_retried_until_it_passes(write_task, run):
    check = "echo >> /app/tries; [ $(wc -l < /app/tries) -ge 2 ]"
    toml = f"[environment.healthcheck]\ncommand = '{check}'\ninterval_sec = 0.01\n"
    ran = await run(write_task(test=f"{PASS}wc -l < /app/tries\n", toml=toml))
    check_graded(ran, 1.0)
    assert ran.read("verifier/stdout.txt") == "2\n"


async def test_a_health_check_that_never_passes_voids_the_trial(write_task, run):
    toml = (
        "[environment.healthcheck]\ncommand = 'echo not yet >&2; false'\n"
        "interval_sec = 0.01\nretries = 2\n"
    )
    check_void(await run(write_task(toml=toml)), Cause.SANDBOX, "tried 2 times", "not yet")


async def test_failures_in_the_start_period_do_not_count(write_task, run):
    check = "echo >> /app/tries; [ $(wc -l < /app/tries) -ge 4 ]"
    toml = (
        f"[environment.healthcheck]\ncommand = '{check}'\nretries = 1\n"
        "start_period_sec = 10\nstart_interval_sec = 0.01\n"
    )
    assert (await run(write_task(toml=toml))).verdict.reward == 1.0


async def test_a_health_check_that_hangs_is_stopped(write_task, run):
    toml = (
        "[environment.healthcheck]\ncommand = 'sleep 60'\ntimeout_sec = 0.1\n"
        "interval_sec = 0.01\nretries = 2\n"
    )
    check_void(await run(write_task(toml=toml)), Cause.SANDBOX, "sleep 60", "timed out")


async def test_concurrent_trials_build_an_equal_image_once(write_task, run):
    dockerfile = "FROM host\nRUN sleep 0.3; echo this ran\nWORKDIR /app\n"
    ran = await asyncio.gather(
        *(run(write_task(f"task{n}", dockerfile=dockerfile)) for n in range(8))
    )
    assert [one.verdict.reward for one in ran] == [1.0] * 8
    logs = [one.read("build.txt") for one in ran if (one.folder / "build.txt").exists()]
    assert "".join(logs).splitlines().count("this ran") == 1


async def test_a_build_timeout_voids_the_trial(write_task, run):
    time = long_time()
    toml = "[environment]\nbuild_timeout_sec = 0.3\n"
    ran = await run(write_task(dockerfile=f"FROM host\nRUN sleep {time}\n", toml=toml))
    check_void(ran, Cause.SANDBOX, "0.3 s", "build_timeout_sec")
    assert processes_with(time) == []


async def test_a_named_image_needs_no_dockerfile(write_task, run):
    task = write_task(toml='[environment]\ndocker_image = "host"\n')
    (task.path / "environment/Dockerfile").unlink()
    check_graded(await run(task), 1.0)


@pytest.mark.parametrize(
    ("toml", "files", "word"),
    [
        ("[environment]\ngpus = 1\n", {}, "GPU"),
        ('[environment]\nos = "windows"\n', {}, "windows"),
        ("", {"environment/docker-compose.yaml": "services: {main: {}}\n"}, "compose"),
    ],
    ids=["gpus", "windows", "compose"],
)
async def test_unsupported_settings_are_rejected(write_task, run, toml, files, word):
    check_void(await run(write_task(toml=toml, files=files)), Cause.SANDBOX, word)


# Users, network and variables of each phase.


async def test_agent_and_verifier_run_as_their_own_users(write_task, run):
    need_several_users()
    toml = '[agent]\nuser = "daemon"\n[verifier]\nuser = "nobody"\n'
    ran = await run(write_task(test=f"{PASS}id -un", toml=toml), "id -un")
    check_graded(ran, 1.0)
    assert ran.read("agent/stdout.txt") == "daemon\n"
    assert ran.read("verifier/stdout.txt") == "nobody\n"


@pytest.mark.parametrize(
    ("baseline", "agent", "verifier"),
    [
        ("public", "no-network", "public"),
        ("no-network", "public", "no-network"),
        ("no-network", None, None),
        ("public", None, None),
    ],
)
async def test_each_phase_has_its_own_network(write_task, run, baseline, agent, verifier):
    toml = f'[environment]\nnetwork_mode = "{baseline}"\n'
    for table, mode in (("agent", agent), ("verifier", verifier)):
        toml += f'[{table}]\nnetwork_mode = "{mode}"\n' if mode else ""
    ran = await run(write_task(test=PASS + INTERFACES, toml=toml), INTERFACES)
    seen = {"public": host_interfaces(), "no-network": ["lo"]}
    assert ran.read("agent/stdout.txt").split() == seen[agent or baseline]
    assert ran.read("verifier/stdout.txt").split() == seen[verifier or baseline]


async def test_an_unsupported_network_policy_is_rejected(write_task, run):
    toml = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.com"]\n'
    check_void(await run(write_task(toml=toml)), Cause.SANDBOX, "allowlist")


async def test_variables_are_set_in_their_phases(write_task, run, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_TEST_PLACE", "harbour")
    toml = (
        '[environment.env]\nPLACE = "${PLIMSOLL_TEST_PLACE}"\nMISSING = "${NOT_SET_HERE:-else}"\n'
        '[verifier.env]\nWANTED = "${PLIMSOLL_TEST_PLACE:-none}!"\n'
        '[solution.env]\nHINT = "${NOT_SET_HERE:-42}"\n'
    )
    tell = "echo $PLACE $MISSING $WANTED $HINT\n"
    task = write_task(test=PASS + tell, toml=toml, files={"solution/solve.sh": tell})
    solved, tried = await run(task, Oracle(), 1), await run(task, tell, 2)
    assert solved.read("agent/stdout.txt") == "harbour else 42\n"
    assert tried.read("agent/stdout.txt") == "harbour else\n"
    assert tried.read("verifier/stdout.txt") == "harbour else harbour!\n"


@pytest.mark.parametrize("table", ["environment", "verifier", "solution"])
async def test_an_unset_variable_is_a_fault_of_the_task(write_task, run, table):
    toml = f'[{table}.env]\nKEY = "${{NOT_SET_HERE}}"\n'
    task = write_task(toml=toml, files={"solution/solve.sh": "true\n"})
    ran = await run(task, Oracle())
    check_void(ran, Cause.TASK, "task.toml", f"{table}.env.KEY", "NOT_SET_HERE")
