"""The course of a trial: its phases, what it keeps, and who may do what in which phase."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from plimsoll.agents.oracle import Oracle
from plimsoll.core.endings import Ending
from plimsoll.trials.trial import run_trial
from plimsoll.trials.verdicts import Cause, Graded, Void

PASS = "echo 1 > /logs/verifier/reward.txt\n"
INTERFACES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort\n"


def host_interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir() if (path / "mtu").exists())


def void(ran, cause: Cause, *words: str) -> bool:
    """Whether it is void, for this cause, in these words."""
    assert isinstance(ran.verdict, Void), ran.verdict
    return ran.verdict.cause is cause and all(word in ran.verdict.reason for word in words)


# What is kept.


async def test_a_trial_leaves_its_verdict_its_phases_and_its_output(write_task, run):
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


async def test_phases_are_told_in_the_order_they_come(write_task, backend, tmp_path):
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


async def test_several_numbers_are_all_kept(write_task, run):
    test = "echo '{\"speed\": 0.5, \"style\": 1}' > /logs/verifier/reward.json"
    ran = await run(write_task(test=test))
    assert ran.verdict.rewards == {"speed": 0.5, "style": 1.0}
    assert ran.verdict.reward == 0.75


# Set-up.


async def test_a_set_up_command_that_fails_voids_the_trial(write_task, run):
    ran = await run(write_task(dockerfile="FROM host\nRUN true\nRUN echo oh no >&2; exit 7\n"))
    assert void(ran, Cause.SANDBOX, "Dockerfile:3", "exit 7", "oh no")
    assert "agent" not in ran.file.phases


async def test_a_healthcheck_is_tried_until_it_passes(write_task, run):
    check = 'echo >> /app/tries; [ $(wc -l < /app/tries) -ge 2 ]'
    toml = f"[environment.healthcheck]\ncommand = '{check}'\ninterval_sec = 0.01\n"
    ran = await run(write_task(test=f"{PASS}wc -l < /app/tries\n", toml=toml))
    assert isinstance(ran.verdict, Graded), ran.verdict
    assert ran.read("verifier/stdout.txt") == "2\n"


async def test_a_healthcheck_that_never_passes_voids_the_trial(write_task, run):
    toml = (
        "[environment.healthcheck]\ncommand = 'echo not yet >&2; false'\n"
        "interval_sec = 0.01\nretries = 2\n"
    )
    assert void(await run(write_task(toml=toml)), Cause.SANDBOX, "tried 2 times", "not yet")


async def test_failures_in_the_start_period_do_not_count(write_task, run):
    check = 'echo >> /app/tries; [ $(wc -l < /app/tries) -ge 4 ]'
    toml = (
        f"[environment.healthcheck]\ncommand = '{check}'\nretries = 1\n"
        "start_period_sec = 10\nstart_interval_sec = 0.01\n"
    )
    assert (await run(write_task(toml=toml))).verdict.reward == 1.0


async def test_a_healthcheck_that_hangs_is_stopped(write_task, run):
    toml = (
        "[environment.healthcheck]\ncommand = 'sleep 60'\ntimeout_sec = 0.1\n"
        "interval_sec = 0.01\nretries = 2\n"
    )
    assert void(await run(write_task(toml=toml)), Cause.SANDBOX, "sleep 60", "timed out")


async def test_an_equal_image_is_built_once_for_trials_that_run_together(write_task, run):
    dockerfile = "FROM host\nRUN sleep 0.3; echo this ran\nWORKDIR /app\n"
    ran = await asyncio.gather(
        *(run(write_task(f"task{n}", dockerfile=dockerfile)) for n in range(8))
    )
    assert [one.verdict.reward for one in ran] == [1.0] * 8
    said = [one.read("build.txt") for one in ran if (one.folder / "build.txt").exists()]
    assert "".join(said).count("this ran\n") == 1


# Users, network and variables of each phase.


async def test_agent_and_verifier_run_as_their_own_users(write_task, run):
    toml = '[agent]\nuser = "daemon"\n[verifier]\nuser = "nobody"\n'
    ran = await run(write_task(test=f"{PASS}id -un", toml=toml), "id -un")
    assert ran.verdict.reward == 1.0
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


async def test_a_policy_that_cannot_be_kept_is_refused(write_task, run):
    toml = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.com"]\n'
    assert void(await run(write_task(toml=toml)), Cause.SANDBOX, "allowlist")


async def test_variables_reach_the_phases_they_are_for(write_task, run, monkeypatch):
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
async def test_a_variable_that_is_not_set_is_the_tasks_fault(write_task, run, table):
    toml = f'[{table}.env]\nKEY = "${{NOT_SET_HERE}}"\n'
    task = write_task(toml=toml, files={"solution/solve.sh": "true\n"})
    ran = await run(task, Oracle())
    assert void(ran, Cause.TASK, "task.toml", f"{table}.env.KEY", "NOT_SET_HERE")


# Collect hooks and the separate verifier.


async def test_collect_hooks_run_before_the_tests_are_there(write_task, run):
    toml = (
        "[[verifier.collect]]\ncommand = 'ls -A /tests > /app/seen; id -un >> /app/seen'\n"
        'user = "daemon"\n[[verifier.collect]]\ncommand = "echo second >> /app/seen"\n'
    )
    dockerfile = "FROM host\nWORKDIR /app\nRUN chmod 777 .\n"
    ran = await run(write_task(test=f"{PASS}cat /app/seen", toml=toml, dockerfile=dockerfile))
    assert ran.verdict.reward == 1.0
    assert ran.read("verifier/stdout.txt") == "daemon\nsecond\n"


@pytest.mark.parametrize(
    ("hook", "word"), [("echo no dump >&2; exit 4", "no dump"), ("sleep 60", "timed out")]
)
async def test_a_collect_hook_that_fails_voids_the_trial(write_task, run, hook, word):
    toml = f"[[verifier.collect]]\ncommand = '{hook}'\ntimeout_sec = 0.2\n"
    assert void(await run(write_task(toml=toml)), Cause.SANDBOX, hook, word)


SEPARATE = 'artifacts = ["/app/made"]\n[verifier]\nenvironment_mode = "separate"\n'
LOOK = "cat /app/made; ls /app /tests; grep -c . /proc/self/cgroup > /dev/null\n"


async def test_a_separate_verifier_sees_the_artifacts_and_nothing_else(write_task, run):
    files = {"tests/Dockerfile": "FROM host\nRUN mkdir /grader\nWORKDIR /grader\n"}
    test = f"{PASS}pwd; cat /app/made; ls /app; [ -e /tests/test.sh ] && echo tests\n"
    ran = await run(
        write_task(test=test, toml=SEPARATE, files=files),
        "echo made > made; echo secret > other; (sleep 60 &) ",
    )
    assert ran.verdict.reward == 1.0
    assert ran.read("verifier/stdout.txt") == "/grader\nmade\nmade\ntests\n"
    assert ran.read("artifacts/made") == "made\n"


async def test_a_folder_is_carried_with_what_it_holds(write_task, run):
    toml = (
        '[[artifacts]]\nsource = "/app/site"\nexclude = ["*.tmp"]\n'
        '[verifier]\nenvironment_mode = "separate"\n'
    )
    agent = "mkdir -p site/deep; touch site/a.tmp site/deep/b; ln -s /etc/passwd site/c"
    ran = await run(write_task(test=f"{PASS}cd /app/site; find . | sort", toml=toml), agent)
    assert ran.verdict.reward == 1.0
    assert ran.read("verifier/stdout.txt").split() == [".", "./deep", "./deep/b"]


async def test_an_artifact_that_was_not_made_is_for_the_tests_to_find(write_task, run):
    test = "[ -e /app/made ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    ran = await run(write_task(test=test, toml=SEPARATE))
    assert isinstance(ran.verdict, Graded), ran.verdict
    assert ran.verdict.reward == 0.0


@pytest.mark.parametrize(
    "agent",
    [
        "ln -s / made",
        "ln -s made made",
        "mkfifo made",
        "mkdir made; chmod 0 made",
        "mkdir -p made; cd made; for i in $(seq 100); do mkdir d; cd d; done",
        "truncate -s 3G made",
    ],
    ids=["link-to-root", "link-to-itself", "fifo", "closed", "deep", "huge"],
)
async def test_an_odd_artifact_does_not_void_the_trial(write_task, run, agent):
    """Otherwise an agent could choose to be tried again rather than to get its 0."""
    test = "[ -f /app/made ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    ran = await run(write_task(test=test, toml=SEPARATE), agent)
    assert isinstance(ran.verdict, Graded), ran.verdict
    assert ran.verdict.reward == 0.0


async def test_the_separate_verifiers_own_image_and_limits_count(write_task, run):
    toml = '[verifier.environment]\ndocker_image = "host"\nworkdir = "/srv"\n[verifier.environment.env]\nA = "b"\n'
    ran = await run(write_task(test=f"{PASS}pwd; echo $A", toml=toml))
    assert ran.verdict.reward == 1.0
    assert ran.read("verifier/stdout.txt") == "/srv\nb\n"


# The end.


class Waiting:
    """An agent that tells when it works, and works for long."""

    name = "waiting"
    reference = False

    def __init__(self) -> None:
        self.working = asyncio.Event()

    async def set_up(self, task, sandbox) -> None:
        pass

    async def run(self, assignment):
        self.working.set()
        await assignment.sandbox.exec("sleep 98764")
        raise AssertionError("it was to be stopped")


def sandboxes(home: Path) -> list[str]:
    return [path.name for path in (home / "sandboxes").iterdir()]


def processes_with(word: str) -> list[int]:
    """Processes of this host with a word in their command line."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def process_with(word: str) -> int:
    async with asyncio.timeout(10):
        while not (found := processes_with(word)):
            await asyncio.sleep(0.01)
    return found[0]


async def test_a_cancelled_trial_says_so_and_leaves_no_sandbox(write_task, run, home, tmp_path):
    agent = Waiting()
    trial = asyncio.create_task(run(write_task(), agent))
    await asyncio.wait_for(agent.working.wait(), 10)
    await asyncio.sleep(0.05)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    verdict = (tmp_path / "trials/task.1/verdict.json").read_text()
    assert '"cause": "cancelled"' in verdict
    assert sandboxes(home) == []
    assert processes_with("98764") == []


async def test_a_trial_cancelled_while_its_image_is_built_leaves_nothing(
    write_task, run, home, tmp_path
):
    task = write_task(dockerfile="FROM host\nRUN echo begun; sleep 98765\n")
    trial = asyncio.create_task(run(task))
    await process_with("98765")
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert '"cause": "cancelled"' in (tmp_path / "trials/task.1/verdict.json").read_text()
    assert sandboxes(home) == []
    assert processes_with("98765") == []


async def test_a_sandbox_that_dies_under_the_agent_voids_the_trial(write_task, run, home):
    agent = Waiting()
    trial = asyncio.create_task(run(write_task(), agent))
    await asyncio.wait_for(agent.working.wait(), 10)
    os.kill(init_of(await process_with("98764")), signal.SIGKILL)
    ran = await asyncio.wait_for(trial, 10)
    assert void(ran, Cause.SANDBOX, "init")
    assert sandboxes(home) == []


def init_of(process: int) -> int:
    """The first process of the namespace that a process is in."""
    while True:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in status)
        if fields["NSpid"].split()[-1] == "1":
            return process
        process = int(fields["PPid"])
