"""Verdicts on real graders in real sandboxes."""

import asyncio

import pytest

from helpers import check_graded, check_void, long_time, processes_with
from plimsoll.trials.verdicts import Cause

REWARD = "/logs/verifier/reward.txt"
JSON = "/logs/verifier/reward.json"
ONE_OR_ZERO = f"&& echo 1 > {REWARD} || echo 0 > {REWARD}\n"
OFFLINE = '[environment]\nnetwork_mode = "no-network"\n'
TRACEBACK = """\
python3 - <<'END'
import log_parsers
END
"""
FAILING_TESTS = """\
cd /tests
cat > test_sum.py <<'END'
import unittest
class Sum(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(1 + 1, 3)
END
"""


def written(text: str, file: str = REWARD) -> str:
    """A grader that only writes a reward."""
    return f"printf '%s' '{text}' > {file}\n"


async def test_a_one_is_graded_without_evidence(write_task, run):
    ran = await run(write_task(test=written("1")))
    check_graded(ran, 1.0)
    assert ran.verdict.evidence == ()


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        (written("0.25"), 0.25),
        (written("1\n"), 1.0),
        (written('{"reward": 0.5, "style": 1}', JSON), 0.5),
        (written('{"reward": 0.5}', JSON) + written("0.5"), 0.5),
        (written("0"), 0.0),
    ],
    ids=["fraction", "newline", "json", "both-files-equal", "silent-zero"],
)
async def test_a_valid_reward_is_graded(write_task, run, test, reward):
    check_graded(await run(write_task(test=test)), reward)


async def test_a_script_without_a_shebang_runs(write_task, run):
    check_graded(await run(write_task(files={"tests/test.sh": written("1")})), 1.0)


@pytest.mark.parametrize(
    "ugly",
    [
        "true",
        TRACEBACK,
        "curl -sS https://example.invalid/install.sh | sh",
        "no-such-tool --version",
        "cat /tests/missing.txt",
    ],
    ids=["quiet", "import", "fetch", "tool", "file"],
)
async def test_a_reward_above_zero_is_valid_with_its_exit_code_as_evidence(write_task, run, ugly):
    task = write_task(test=f"{ugly}\n{written('1')}exit 1\n", toml=OFFLINE)
    check_graded(await run(task), 1.0, "exited with 1")


# Zeros that say nothing about the work.


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (
            "curl -LsSf https://example.invalid/uv/install.sh | sh\n"
            "if uvx pytest /tests; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
            ("example.invalid", "curl"),
        ),
        (f"{TRACEBACK}echo 0 > {REWARD}\n", ("log_parsers",)),
        (f"git clone https://example.invalid/parsers /opt/p\n{written('0')}", ("git",)),
        (f"uvx pytest /tests || {written('0')}", ("uvx",)),
        (f"python3 /tests/parse.py || {written('0')}", ("/tests/parse.py",)),
        (f"diff /app/out /tests/expected.txt || {written('0')}", ("/tests/expected.txt",)),
        (f"set -e\n{written('0')}{TRACEBACK}{written('1')}", ("log_parsers",)),
    ],
    ids=["uv-by-curl", "parser", "clone", "tool", "script", "expected", "set-e"],
)
async def test_a_zero_of_a_grader_that_lacks_something_is_void(write_task, run, test, words):
    task = write_task(test=test, toml=OFFLINE, files={"environment/x": ""})
    check_void(await run(task, "touch /app/out"), Cause.GRADER, *words)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        pytest.param(written("{}", JSON), ("reward.json", "empty"), id="empty-object"),
        pytest.param(written("-1"), ("-1", "reward_range"), id="negative"),
        pytest.param(written("7.5"), ("7.5", "reward_range"), id="above-range"),
        pytest.param(written("nan"), ("nan",), id="nan"),
        pytest.param(written("1e400"), ("1e400",), id="overflow"),
        pytest.param(written("yes"), ("reward.txt",), id="word"),
        pytest.param(written("1 1"), ("reward.txt",), id="two-numbers"),
        pytest.param(written('{"reward": "1"}', JSON), ("string",), id="json-string"),
        pytest.param(written('{"reward": {"a": 1}}', JSON), ("object",), id="nested"),
        pytest.param(written('{"reward": [1]}', JSON), ("list",), id="json-list"),
        pytest.param(written('{"reward": NaN}', JSON), ("finite",), id="json-nan"),
        pytest.param(written('{"reward": 1e400}', JSON), ("finite",), id="json-overflow"),
        pytest.param(written('{"reward": null}', JSON), ("reward",), id="null"),
        pytest.param(written('{"reward": true}', JSON), ("true",), id="boolean"),
        pytest.param(written("1", JSON), ("object",), id="bare-scalar"),
        pytest.param(written('{"reward": 1', JSON), ("JSON",), id="cut-off"),
        pytest.param(
            written('{"reward": 1}', JSON) + written("0"),
            ("reward.json", "reward.txt"),
            id="two-files-differ",
        ),
        pytest.param(written(""), ("empty",), id="empty-file"),
        pytest.param(written("", JSON), ("reward.json",), id="empty-json-file"),
        pytest.param("true", ("neither",), id="no-file"),
        pytest.param(
            written('{"reward": 1}', "/logs/verifier/rewards.json"),
            ("rewards.json", "misspelt"),
            id="misspelt-file",
        ),
        pytest.param(f"mkdir {REWARD}", ("neither",), id="folder"),
        pytest.param(f"ln -s /etc/hostname {REWARD}", ("neither",), id="link"),
        pytest.param(f"mkfifo {REWARD}", ("neither",), id="fifo"),
        pytest.param("kill -9 $$", ("SIGKILL",), id="killed"),
    ],
)
async def test_an_invalid_reward_is_void(write_task, run, test, words):
    check_void(await run(write_task(test=test)), Cause.GRADER, *words)


@pytest.mark.parametrize(
    "test",
    [
        "rm -rf /logs/verifier",
        "rm -rf /logs/verifier; echo 1 > /logs/verifier",
        "rm -rf /logs/verifier; mkdir /tmp/x; ln -s /tmp/x /logs/verifier; cat /tests/none",
        "mkdir /tests/d; rm -rf /tests",
    ],
    ids=["removed", "file", "link", "tests-removed"],
)
async def test_a_grader_that_destroys_its_own_folders_did_not_grade(write_task, run, test):
    check_void(await run(write_task(test=test)), Cause.GRADER)


@pytest.mark.parametrize("reward", [0.0, 1.0])
async def test_a_grader_with_large_logs_is_graded(write_task, run, reward):
    logs = "fallocate -l 90M /logs/verifier/a.log; fallocate -l 90M /logs/verifier/z.log\n"
    ran = await run(write_task(test=written(f"{reward}") + logs))
    check_graded(ran, reward)
    size = sum(file.stat().st_size for file in ran.folder.rglob("*") if file.is_file())
    assert size < 70 << 20


async def test_a_declared_reward_range_is_used(write_task, run):
    toml = "[metadata]\nreward_range = [-1, 10]\n"
    low, high, beyond = await asyncio.gather(
        run(write_task("low", test=written("-1"), toml=toml)),
        run(write_task("high", test=written("7.5"), toml=toml)),
        run(write_task("beyond", test=written("11"), toml=toml)),
    )
    check_graded(low, -1.0)
    check_graded(high, 7.5)
    check_void(beyond, Cause.GRADER, "11")


async def test_a_script_with_windows_line_endings_is_a_fault_of_the_task(write_task, run):
    ran = await run(write_task(test=f"#!/bin/bash\r\necho 1 > {REWARD}\r\n"))
    check_void(ran, Cause.TASK, "tests/test.sh", "CRLF")


async def test_a_script_with_a_syntax_error_is_a_fault_of_the_task(write_task, run):
    ran = await run(write_task(test=f"{written('0')}if true; then\n"))
    check_void(ran, Cause.TASK)


async def test_a_missing_script_is_a_fault_of_the_task(write_task, run):
    task = write_task()
    (task.path / "tests/test.sh").unlink()
    check_void(await run(task), Cause.TASK, "tests/test.sh")


async def test_a_grader_that_times_out_is_void_and_its_processes_are_killed(write_task, run):
    time = long_time()
    test = f"{written('1')}(setsid nohup sleep {time} &)\nsleep {time} & sleep {time}"
    ran = await run(write_task(test=test, toml="[verifier]\ntimeout_sec = 0.5\n"))
    check_void(ran, Cause.GRADER, "ran past its 0.5 s")
    assert not processes_with(time)


async def test_background_processes_of_a_grader_do_not_delay_it(write_task, run):
    time = long_time()
    ran = await run(write_task(test=f"{written('1')}(setsid sleep {time} &)\nsleep {time} &"))
    check_graded(ran, 1.0)
    assert not processes_with(time)


async def test_a_clone_that_fails_in_the_image_voids_the_trial(write_task, run):
    dockerfile = "FROM host-system\nRUN git clone -q https://example.invalid/parsers /opt/parsers\n"
    ran = await run(write_task(test=written("0"), dockerfile=dockerfile))
    check_void(ran, Cause.SANDBOX, "Dockerfile:2", "git clone", "exit 128")


async def test_a_misspelt_key_is_reported_if_grading_fails(write_task, run):
    task = write_task(test='printf "$WANTED" > /logs/x', toml="[verifier.envs]\nWANTED = '1'\n")
    ran = await run(task)
    check_void(ran, Cause.GRADER)
    assert any("envs" in evidence.what for evidence in ran.verdict.evidence)


# Valid zeros, for any output.


async def test_a_zero_after_failed_tests_is_valid(write_task, run):
    test = f"{FAILING_TESTS}python3 -m unittest test_sum || {written('0')}"
    check_graded(await run(write_task(test=test)), 0.0)


async def test_a_zero_of_a_script_that_stops_at_failed_tests_is_valid(write_task, run):
    test = f"set -e\n{written('0')}{FAILING_TESTS}python3 -m unittest test_sum\n{written('1')}"
    check_graded(await run(write_task(test=test)), 0.0, "exited with 1")


async def test_a_zero_by_diff_is_valid(write_task, run):
    test = f"diff /app/out.txt /tests/expected.txt {ONE_OR_ZERO}"
    files = {"tests/expected.txt": "42\n"}
    task = write_task(test=test, files=files, instruction="Write 42 to /app/out.txt.\n")
    nothing, wrong, right = await asyncio.gather(
        run(task, "true", 1),
        run(task, "echo 41 > /app/out.txt", 2),
        run(task, "echo 42 > /app/out.txt", 3),
    )
    check_graded(nothing, 0.0)
    check_graded(wrong, 0.0)
    check_graded(right, 1.0)


async def test_a_zero_for_a_missing_program_of_the_work_is_valid(write_task, run):
    test = f'[ "$(/app/hello)" = hello ] {ONE_OR_ZERO}'
    task = write_task(test=test, instruction="Write a program /app/hello that prints hello.\n")
    absent, present = await asyncio.gather(
        run(task, "true", 1),
        run(task, "printf '#!/bin/sh\\necho hello' > /app/hello; chmod +x /app/hello", 2),
    )
    check_graded(absent, 0.0)
    check_graded(present, 1.0)


@pytest.mark.parametrize(
    "output",
    [
        "ModuleNotFoundError: No module named 'log_parsers'",
        "curl: (6) Could not resolve host: example.invalid",
        "bash: line 1: uvx: command not found",
        "ERROR: file or directory not found: /tests/test_all.py",
        "collected 0 items",
    ],
)
async def test_output_of_the_code_under_test_does_not_void_a_valid_zero(write_task, run, output):
    """The work cannot void its 0 by printing such lines."""
    test = (
        f"{FAILING_TESTS}sed -i '/def/a\\        import os; os.system(\"sh /app/work.sh\")' "
        f"test_sum.py\npython3 -m unittest test_sum || {written('0')}"
    )
    ran = await run(write_task(test=test), f'echo "echo \\"{output}\\" >&2" > /app/work.sh')
    assert output in ran.read("verifier/stderr.txt")
    check_graded(ran, 0.0)
