"""Agents cannot forge rewards: their processes and files are gone before grading."""

import pytest

from helpers import check_graded

GRADER = """\
[ "$(cat /app/answer 2>/dev/null)" = 42 ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
# Slow on purpose: a remaining process has time to write a 1 before and after the 0.
SLOW_GRADER = f"rm -f /app/answer; sleep 0.1\n{GRADER}sleep 0.1\n"
FORGE = "while :; do echo 1 > /logs/verifier/reward.txt; echo 42 > /app/answer; done"
CHAIN = """\
import os, signal
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
while True:
    # The child continues and its parent exits, so process ids change all the time.
    if os.fork(): os._exit(0)
    os.setsid()
    open("/logs/verifier/reward.txt", "w").write("1")
    open("/app/answer", "w").write("42")
"""
ASLEEP = f"""\
cat > /tmp/chain.py <<'END'
{CHAIN}END
"""


@pytest.mark.every_backend
@pytest.mark.parametrize(
    "script",
    [
        f"({FORGE}) &",
        f"setsid bash -c '{FORGE}' > /dev/null 2>&1 &",
        f"nohup bash -c '{FORGE}' > /dev/null 2>&1 & disown",
        f"( ( ({FORGE}) & ) & )",
        f"trap '' TERM HUP INT; ({FORGE}) & kill -STOP $!",
        f"{ASLEEP}python3 /tmp/chain.py &",
        f"unshare --fork --pid --mount bash -c '{FORGE}' &",
        f"unshare --user --map-root-user --fork --pid bash -c '{FORGE}' &",
        "mkdir -p /run/f; (while :; do mv -T /run/f /logs/verifier; done) 2> /dev/null &",
    ],
    ids=[
        "background",
        "setsid",
        "nohup",
        "double-fork",
        "stopped",
        "fork-chain",
        "own-namespaces",
        "own-user-namespace",
        "renames",
    ],
)
async def test_a_remaining_process_cannot_write_the_reward(write_task, run, script):
    ran = await run(write_task(test=SLOW_GRADER), f"{script}\nsleep 0.1")
    check_graded(ran, 0.0)


@pytest.mark.parametrize(
    "script",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "mkdir -p /logs/verifier/reward.txt/deep",
        "mkfifo /logs/verifier/reward.txt",
        "ln -s /app/mine /logs/verifier/reward.txt; echo 1 > /app/mine",
        "rm -rf /logs/verifier; ln -s /app/mine /logs/verifier; mkdir /app/mine; "
        "echo '{\"reward\": 1}' > /app/mine/reward.json",
        "rm -rf /logs; mkdir -p /app/mine/verifier; ln -s /app/mine /logs; "
        "echo '{\"reward\": 1}' > /app/mine/verifier/reward.json",
        "rm -rf /logs/verifier; echo 1 > /logs/verifier",
        "rm -rf /logs; echo 1 > /logs",
        "rm -rf /logs; ln -s /nowhere/at/all /logs",
        "rm -rf /logs; ln -s /logs /logs",
        "rm -rf /logs; ln -s /proc/1 /logs",
        "chmod 0 /logs/verifier /logs; chattr +i /logs/verifier 2> /dev/null; true",
        "mkdir /app/mine; echo '{\"reward\": 1}' > /app/mine/reward.json; "
        "mount --bind /app/mine /logs/verifier; true",
        "mount -t tmpfs none /logs/verifier && echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "cd /logs/verifier; for i in $(seq 200); do mkdir d; cd d; done; echo 1 > reward.txt",
    ],
    ids=[
        "file",
        "json",
        "folder-for-file",
        "fifo",
        "file-link",
        "folder-link",
        "parent-link",
        "file-for-folder",
        "file-for-parent",
        "dead-link-for-parent",
        "link-to-itself-for-parent",
        "proc-for-parent",
        "closed",
        "bind-mount",
        "tmpfs",
        "deep-tree",
    ],
)
async def test_planted_files_in_the_reward_folder_are_removed(write_task, run, script):
    ran = await run(write_task(test=GRADER), script)
    check_graded(ran, 0.0)
    assert ran.verdict.rewards == {"reward": 0.0}


FORGED_TEST = "printf '#!/bin/bash\\necho 1 > /logs/verifier/reward.txt' > {}"


@pytest.mark.parametrize(
    "script",
    [
        "mkdir -p /tests; " + FORGED_TEST.format("/tests/test.sh"),
        "mkdir /app/t; ln -sT /app/t /tests; " + FORGED_TEST.format("/app/t/test.sh"),
        FORGED_TEST.format("/tests"),
        "mkdir -p /tests/test.sh /tests/helper.sh",
        "mkdir -p /tests; ln -s /app/own.sh /tests/test.sh; touch /app/own.sh",
        "mkdir -p /tests; ln -s /app/own.sh /tests/helper.sh; echo reward=1 > /app/own.sh",
        "mkdir -p /tests; echo 'reward=1' > /tests/more.sh",
        "mkdir -p /tests; mount -t tmpfs none /tests; mount -o remount,ro none /tests; true",
        "mkdir -p /tests; chattr +i /tests 2> /dev/null; chmod 0 /tests",
        "(until echo reward=1 > /tests/helper.sh; do :; done) 2> /dev/null &",
    ],
    ids=[
        "folder",
        "link",
        "file",
        "folder-for-file",
        "script-link",
        "helper-link",
        "extra-file",
        "read-only-mount",
        "closed",
        "waits-for-them",
    ],
)
async def test_planted_tests_do_not_run(write_task, run, script):
    grader = """\
reward=0
. /tests/helper.sh
[ -e /tests/more.sh ] && . /tests/more.sh
sleep 0.05
echo $reward > /logs/verifier/reward.txt
"""
    task = write_task(test=grader, files={"tests/helper.sh": "echo the helper of the task\n"})
    ran = await run(task, script)
    check_graded(ran, 0.0)
    assert ran.read("verifier/stdout.txt") == "the helper of the task\n"


async def test_a_planted_conftest_does_not_run(write_pytest_task, run):
    plant = """\
mkdir -p /tests/__pycache__
cat > /tests/conftest.py <<'END'
import os
open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
os._exit(0)
END
cp /tests/conftest.py /tests/pytest.py
"""
    ran = await run(write_pytest_task(tests="def test_one():\n    assert 1 == 2\n"), plant)
    check_graded(ran, 0.0)
    assert ran.verdict.rewards == {"reward": 0.0}


@pytest.mark.every_backend
async def test_honest_work_is_still_rewarded(write_task, run):
    ran = await run(write_task(test=GRADER), "echo 42 > /app/answer")
    assert ran.verdict.reward == 1.0


async def test_the_agent_sees_no_tests_and_no_solution(write_task, run):
    files = {"solution/solve.sh": "echo 42 > /app/answer\n", "environment/data.txt": "x"}
    ran = await run(write_task(files=files), "ls -A /tests /solution /logs/verifier")
    assert ran.read("agent/stdout.txt").split() == ["/logs/verifier:"]
