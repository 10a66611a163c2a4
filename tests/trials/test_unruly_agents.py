"""Agents that run too long, fail, or destroy files: all trials end with a correct verdict."""

import asyncio
import tracemalloc

import pytest

from helpers import PlainAgent, check_graded, check_void, long_time
from parts import need
from plimsoll.agents.protocol import Outcome
from plimsoll.core.endings import Ending
from plimsoll.core.errors import AgentError, SetUpError
from plimsoll.trials.verdicts import Cause, Graded, Void

GRADER = "([ -e /app/done ] && echo 1 || echo 0) > /logs/verifier/reward.txt"
DONE = "touch /app/done\n"


class Failing(PlainAgent):
    """An agent that works and then raises."""

    name = "failing"

    def __init__(self, error: BaseException, *, in_set_up: bool = False) -> None:
        self._error = error
        self._in_set_up = in_set_up

    async def set_up(self, task, sandbox) -> None:
        del task, sandbox
        if self._in_set_up:
            raise self._error

    async def run(self, assignment) -> Outcome:
        await assignment.sandbox.exec(DONE)
        raise self._error


class Ends(PlainAgent):
    """An agent that works and returns an ending."""

    name = "ends"

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    async def run(self, assignment) -> Outcome:
        await assignment.sandbox.exec(DONE)
        return Outcome(self._ending)


@pytest.mark.parametrize("ending", list(Ending))
async def test_the_ending_of_the_agent_is_kept_with_the_reward(write_task, run, ending):
    ran = await run(write_task(test=GRADER), Ends(ending))
    assert ran.verdict == Graded(1.0, ending, {"reward": 1.0})


@pytest.mark.every_backend
@pytest.mark.parametrize("script", ["sleep", "trap '' TERM INT; setsid sleep"])
async def test_an_agent_out_of_time_is_stopped_and_graded(write_task, run, script):
    time = long_time()
    test = f"{GRADER}\ngrep -l {time} /proc/[0-9]*/cmdline\n"
    task = write_task(test=test, toml="[agent]\ntimeout_sec = 0.5\n")
    ran = await run(task, f"{DONE}{script} {time}; :")
    check_graded(ran, 1.0)
    assert ran.verdict.ending is Ending.BUDGET
    assert ran.read("verifier/stdout.txt") == ""
    assert 0.4 < ran.phases["agent"] < 3


async def test_an_agent_that_cannot_work_voids_the_trial(write_task, run):
    ran = await run(write_task(test=GRADER), Failing(AgentError("no model to ask")))
    check_void(ran, Cause.SANDBOX, "no model to ask")
    assert not (ran.folder / "bug.txt").exists()


async def test_a_failed_set_up_of_the_agent_voids_the_trial(write_task, run):
    error = SetUpError("git clone of the agent failed (exit 128)")
    ran = await run(write_task(test=GRADER), Failing(error, in_set_up=True))
    assert ran.verdict == Void(Cause.SANDBOX, str(error))
    assert "agent" not in ran.phases


@pytest.mark.parametrize("error", [ValueError("off by one"), TimeoutError("of a socket")])
async def test_an_unexpected_exception_is_a_void_trial_with_its_traceback(write_task, run, error):
    ran = await run(write_task(test=GRADER), Failing(error))
    check_void(ran, Cause.BUG, str(error))
    assert "Traceback" in ran.read("bug.txt")


@pytest.mark.every_backend
@pytest.mark.parametrize(
    "script",
    [
        "kill -9 -1",
        "kill -9 1; kill -SEGV 1; kill -TERM 1; kill -STOP 1",
        "for i in $(seq 20); do (while :; do :; done) & done; kill -9 -1",
        "bomb() { bomb | bomb & }; bomb",
        "dd if=/dev/zero of=/dev/shm/full bs=1M; true",
        "ulimit -f 1; dd if=/dev/zero of=/app/big bs=1M count=8",
        "rm -rf /app/* /tmp /var/tmp /root /home /dev/shm/*",
        "rm -rf /logs /tests /solution",
        "touch /logs/agent/x; ln -s /etc /logs/artifacts/etc; mkfifo /logs/agent/pipe",
        "exec 1>&- 2>&-; sleep 0.1",
        "umount -a; umount -l /proc /dev; mount -o remount,ro /; true",
        "echo 0 > /proc/sys/kernel/pid_max; echo c > /proc/sysrq-trigger; true",
        "chown -R nobody /app; chmod 0 /app /logs /logs/*",
        "hostname other; date -s 2001-01-01; true",
    ],
    ids=[
        "kill-all",
        "kill-init",
        "kill-busy",
        "fork-bomb",
        "full-shm",
        "file-size",
        "remove-files",
        "remove-logs",
        "odd-logs",
        "closed-output",
        "unmount",
        "kernel-settings",
        "closed-folders",
        "host-name-and-clock",
    ],
)
async def test_an_agent_that_destroys_files_is_graded(write_task, run, script):
    toml = "[agent]\ntimeout_sec = 2\n"
    ran = await run(write_task(test=GRADER, toml=toml), f"{DONE}{script}")
    check_graded(ran, 0.0 if "/app/*" in script else 1.0)


@pytest.mark.parametrize(
    "script",
    ["rm -rf /app", "rm -rf /app; touch /app", "rm -rf /app; ln -s /app /app"],
    ids=["removed", "file", "link"],
)
async def test_an_agent_that_removes_its_own_folder_is_graded(write_task, run, script):
    """Otherwise an agent could choose a retry instead of a 0."""
    ran = await run(write_task(test=GRADER), f"cd /; {script}")
    check_graded(ran, 0.0)


EAT = "python3 -c 'x = bytearray(256 << 20)'"


@pytest.mark.every_backend
async def test_an_agent_that_runs_out_of_memory_is_graded(write_task, run, backend):
    task = write_task(test=GRADER, toml="[environment]\nmemory_mb = 64\n")
    ran = await run(task, f"{DONE}{EAT}; echo $?")
    _need_memory_limits(backend)
    check_graded(ran, 1.0)
    assert ran.read("agent/stdout.txt") == "137\n"


@pytest.mark.every_backend
async def test_a_grader_that_runs_out_of_memory_did_not_grade(write_task, run, backend):
    task = write_task(test=f"{GRADER}\n{EAT}", toml="[environment]\nmemory_mb = 64\n")
    ran = await run(task, "true", 1)
    _need_memory_limits(backend)
    check_void(ran, Cause.SANDBOX, "memory", "64 MB")
    check_graded(await run(task, DONE, 2), 1.0)


def _need_memory_limits(backend):
    """Skip if the warnings of the backend report that it cannot enforce memory limits."""
    missing = [warning for warning in backend.warnings if "cgroup" in warning]
    need("cgroups", missing[0] if missing else None)


@pytest.mark.every_backend
async def test_a_flood_of_output_is_truncated(write_task, run):
    flood = "head -c 200000000 /dev/zero | tr '\\0' x; echo the end >&2"
    test = f"{GRADER}\nhead -c 50000000 /dev/zero | tr '\\0' y\n"
    ran = await run(write_task(test=test), DONE + flood)
    check_graded(ran, 1.0)
    assert (ran.folder / "agent/stdout.txt").stat().st_size < 17 << 20
    assert "truncated" in ran.read("agent/stdout.txt")[-200:]
    assert ran.read("agent/stderr.txt") == "the end\n"
    assert (ran.folder / "verifier/stdout.txt").stat().st_size < 2 << 20


async def test_many_large_files_of_the_tests_are_not_read_into_memory(write_task, run):
    """Holes in files do not count towards the limit on the size of the logs."""
    test = f"{GRADER}\ncd /logs/verifier; for i in $(seq 100); do truncate -s 1M $i; done\n"
    tracemalloc.start()
    try:
        ran = await run(write_task(test=test), DONE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    check_graded(ran, 1.0)
    assert len([*(ran.folder / "verifier/logs").iterdir()]) == 101
    assert peak < 50 << 20


async def test_unruly_trials_do_not_disturb_other_trials(write_task, run):
    bad = write_task("bad", test=GRADER, toml="[agent]\ntimeout_sec = 1\n")
    good = write_task("good", test=GRADER)
    script = f"{DONE}kill -9 -1"
    ran = await asyncio.gather(
        *(run(bad, script, n) for n in range(3)),
        run(bad, Failing(ValueError("x")), 9),
        *(run(good, f"sleep 0.2; {DONE}", n) for n in range(3)),
    )
    assert [one.verdict.reward for one in ran if isinstance(one.verdict, Graded)] == [1.0] * 6


@pytest.mark.parametrize(
    "attack",
    [
        "prlimit --pid 1 --nofile=3:3",
        "prlimit --pid 1 --as=1000000:1000000",
        "echo 1000 > /proc/1/oom_score_adj",
        "unshare -UrmC sh -c 'mount -t cgroup -o pids none /mnt && echo 1 > /mnt/pids.max'",
    ],
)
async def test_an_attack_on_the_init_does_not_void_a_valid_zero(write_task, run, attack):
    check_graded(await run(write_task(test=GRADER), attack), 0.0)


async def test_a_task_that_needs_system_calls_is_rejected_unless_they_are_allowed(write_task, run):
    task = write_task(toml='[metadata]\nsystem_calls = ["user-namespaces"]\n')
    check_void(await run(task), Cause.SANDBOX, '"user-namespaces"', "allow_system_calls")
