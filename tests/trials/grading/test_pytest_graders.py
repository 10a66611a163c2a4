"""Graders that run a real pytest: all of its exit codes, and the party at fault."""

import pytest

from helpers import check_graded, check_void
from plimsoll.trials.verdicts import Cause

ASKS_FOR_A_MODULE = "Write /app/calc.py with a function `add(a, b)`.\n"
NEEDS_CALC = """\
import sys
sys.path.insert(0, "/app")
from calc import add

def test_add():
    assert add(1, 2) == 3
"""
RUNS_THE_WORK = """\
import subprocess

def test_greeting():
    done = subprocess.run(["sh", "/app/work.sh"], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.stdout == "hello\\n"
"""
PASSES = "def test_one():\n    assert True\n"
GRADER = """\
cd /tests
python3 -m pytest -p no:cacheprovider -rA {arguments}
code=$?
echo "pytest ended with $code"
if [ $code -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    ("tests", "reward", "code"),
    [(PASSES, 1.0, 0), (f"{PASSES}def test_two():\n    assert 1 == 2\n", 0.0, 1)],
    ids=["passed", "failed"],
)
async def test_tests_that_ran_are_graded(write_pytest_task, run, tests, reward, code):
    task = write_pytest_task(tests=tests, test=GRADER.format(arguments="test_outputs.py"))
    ran = await run(task)
    assert f"pytest ended with {code}\n" in ran.read("verifier/stdout.txt")
    check_graded(ran, reward)


BAD_CONFTEST = "def pytest_runtestloop(session):\n    raise RuntimeError('lost')\n"


@pytest.mark.parametrize(
    ("code", "tests", "arguments", "conftest", "word"),
    [
        (2, "import log_parsers\n" + PASSES, "test_outputs.py", "", "log_parsers"),
        (2, "LIMIT = int('many')\n" + PASSES, "test_outputs.py", "", "ValueError"),
        (2, "def test_one():\n    raise KeyboardInterrupt\n", "test_outputs.py", "", "pytest"),
        (3, PASSES, "test_outputs.py", BAD_CONFTEST, "RuntimeError"),
        (4, PASSES, "test_results.py", "", "test_results.py"),
        (4, PASSES, "--timeout=5 test_outputs.py", "", "--timeout"),
        (4, PASSES, "-p log_plugin test_outputs.py", "", "log_plugin"),
        (4, PASSES, "test_outputs.py", "import log_parsers\n", "log_parsers"),
        (5, "def check_one():\n    assert True\n", "test_outputs.py", "", "no tests"),
        (5, PASSES, "-k nothing test_outputs.py", "", "no tests"),
        (1, "def test_one(mocker):\n    assert 0\n", "test_outputs.py", "", "mocker"),
    ],
    ids=[
        "2-import",
        "2-error-at-import",
        "2-interrupted",
        "3-internal-error",
        "4-no-such-file",
        "4-unknown-option",
        "4-no-such-plugin",
        "4-conftest",
        "5-no-tests",
        "5-all-deselected",
        "1-no-such-fixture",
    ],
)
async def test_a_pytest_that_ran_nothing_is_void(
    write_pytest_task, run, code, tests, arguments, conftest, word
):
    files = {"tests/conftest.py": conftest} if conftest else {}
    ran = await run(
        write_pytest_task(tests=tests, test=GRADER.format(arguments=arguments), files=files)
    )
    assert f"pytest ended with {code}\n" in ran.read("verifier/stdout.txt")
    check_void(ran, Cause.GRADER, word)


async def test_a_test_file_with_a_syntax_error_is_a_fault_of_the_task(write_pytest_task, run):
    ran = await run(write_pytest_task(tests="def test_one(:\n    pass\n"))
    check_void(ran, Cause.TASK, "test_outputs.py")


@pytest.mark.parametrize(
    ("work", "reward"),
    [
        ("true", 0.0),
        ("echo 'import nonesuch' > /app/calc.py", 0.0),
        ("echo 'from nonesuch.deep import x' > /app/calc.py", 0.0),
        ("echo 'def add(a, b' > /app/calc.py", 0.0),
        ("echo 'def plus(a, b): return a + b' > /app/calc.py", 0.0),
        ("echo 'raise OSError(5)' > /app/calc.py", 0.0),
        ("echo 'def add(a, b): return a - b' > /app/calc.py", 0.0),
        ("echo 'def add(a, b): import nonesuch' > /app/calc.py", 0.0),
        ("echo 'def add(a, b): return a + b' > /app/calc.py", 1.0),
    ],
    ids=[
        "not-written",
        "imports-what-is-not-there",
        "imports-below-what-is-not-there",
        "does-not-parse",
        "lacks-the-function",
        "raises-at-import",
        "wrong",
        "imports-late",
        "right",
    ],
)
async def test_faults_of_the_work_are_valid_zeros(write_pytest_task, run, work, reward):
    task = write_pytest_task(tests=NEEDS_CALC, instruction=ASKS_FOR_A_MODULE)
    ran = await run(task, work)
    check_graded(ran, reward)


@pytest.mark.parametrize(
    "output",
    [
        "Traceback (most recent call last):\nModuleNotFoundError: No module named log_parsers",
        "curl: (6) Could not resolve host: example.invalid",
        "sh: 1: uvx: not found",
        "no tests ran in 0.01s",
    ],
    ids=["import", "fetch", "tool", "no-tests"],
)
async def test_output_of_the_work_does_not_void_its_zero(write_pytest_task, run, output):
    ran = await run(write_pytest_task(tests=RUNS_THE_WORK), f"echo 'echo \"{output}\"' > work.sh")
    assert output.splitlines()[-1] in ran.read("verifier/stdout.txt")
    check_graded(ran, 0.0)


async def test_a_missing_program_of_the_work_is_a_valid_zero(write_pytest_task, run):
    tests = 'import subprocess\ndef test_hello():\n    subprocess.run(["/app/hello"], check=True)\n'
    ran = await run(write_pytest_task(tests=tests, instruction="Write /app/hello.\n"))
    assert "FileNotFoundError" in ran.read("verifier/stdout.txt")
    check_graded(ran, 0.0)
