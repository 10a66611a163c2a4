"""The judge keeps valid grades and voids broken graders, on real output."""

import time
from dataclasses import replace

import pytest

from plimsoll.core.endings import Ending
from plimsoll.trials.judge import Grading, judge
from plimsoll.trials.verdicts import Cause, Graded, Void

INSTRUCTION = "Make /app/report.txt from /app/data.csv.\n"
ZERO = {"reward.txt": b"0\n"}


def grading(stdout="", stderr="", *, instruction=INSTRUCTION, files=None, **more) -> Grading:
    plain = Grading(
        exit_code=0,
        signal=None,
        timed_out=False,
        timeout=600.0,
        stdout=stdout,
        stderr=stderr,
        files=ZERO if files is None else files,
        instruction=instruction,
        reward_range=(0.0, 1.0),
    )
    return replace(plain, **more)


def verdict(*args, **kwargs):
    return judge(grading(*args, **kwargs), Ending.SUBMITTED)


def assert_void(result, *parts: str, cause: Cause = Cause.GRADER) -> Void:
    assert isinstance(result, Void), result
    assert result.cause is cause, result
    for part in parts:
        assert part in result.reason
    assert "\n" not in result.reason
    assert result.ending is Ending.SUBMITTED
    return result


def assert_zero(result) -> Graded:
    assert isinstance(result, Graded), result
    assert result.reward == 0.0
    return result


def collection(test_file: str, frames: str, error: str, *, importing: bool = True) -> str:
    """The output of pytest for a test module that it could not load."""
    head = (
        f"ImportError while importing test module '{test_file}'.\n"
        "Hint: make sure your test modules/packages have valid Python names.\n"
        "Traceback:\n"
        "/usr/local/lib/python3.11/importlib/__init__.py:126: in import_module\n"
        "    return _bootstrap._gcd_import(name[level:], package, level)\n"
        if importing
        else ""
    )
    name = test_file.rsplit("/", 1)[-1]
    return (
        "============================= test session starts ==============================\n"
        f"rootdir: {test_file.rsplit('/', 1)[0]}\n"
        "collected 0 items / 1 error\n\n"
        "==================================== ERRORS ====================================\n"
        f"____________________ ERROR collecting {name} ____________________\n"
        f"{head}{frames}{error}"
        "=========================== short test summary info ============================\n"
        f"ERROR ../tests/{name}\n"
        "!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!\n"
        "=============================== 1 error in 0.15s ===============================\n"
    )


IN_TESTS = "../tests/test_outputs.py:2: in <module>\n    import log_parsers\n"
NO_PARSERS = "E   ModuleNotFoundError: No module named 'log_parsers'\n"
FAILED = "========================= 1 failed, 1 passed in 0.02s ==========================\n"
GRADE_PY = """\
Traceback (most recent call last):
  File "/tests/grade.py", line 3, in <module>
    from agent import log_parsers
ModuleNotFoundError: No module named 'agent'
"""
APP_PY = """\
Traceback (most recent call last):
  File "/app/main.py", line 1, in <module>
    import flask
ModuleNotFoundError: No module named 'flask'
"""


class TestEndings:
    def test_a_grader_that_times_out_is_void(self):
        result = verdict(timed_out=True, timeout=30.0, exit_code=None, files={})
        assert_void(result, "ran past its 30 s")

    def test_a_reward_written_before_a_timeout_is_not_used(self):
        assert_void(verdict(timed_out=True, files={"reward.txt": b"1"}), "ran past")

    def test_a_killed_grader_is_void(self):
        result = verdict(signal=9, exit_code=None, files={"reward.txt": b"1"})
        assert_void(result, "signal 9 (SIGKILL)")

    def test_an_unknown_signal_is_named_by_its_number(self):
        assert_void(verdict(signal=200, exit_code=None), "signal 200")


class TestRewards:
    def test_a_reward_above_zero_is_valid_whatever_was_printed(self):
        noise = "curl: (6) Could not resolve host: astral.sh\nno tests ran in 0.01s\n" + GRADE_PY
        result = verdict("", noise, files={"reward.txt": b"1"}, exit_code=1)
        assert isinstance(result, Graded)
        assert result.reward == 1.0
        assert result.rewards == {"reward": 1.0}
        assert [note.what for note in result.evidence] == ["the grader exited with 1"]

    def test_exit_code_zero_is_not_a_warning(self):
        result = verdict(files={"reward.txt": b"1"})
        assert isinstance(result, Graded)
        assert result.evidence == ()

    def test_several_numbers_are_kept(self):
        result = verdict(files={"reward.json": b'{"a": 1, "b": 0}'})
        assert isinstance(result, Graded)
        assert (result.reward, result.rewards) == (0.5, {"a": 1.0, "b": 0.0})
        assert "mean" in result.evidence[0].what

    def test_no_file_is_void(self):
        assert_void(verdict(files={}), "neither reward.json nor reward.txt")

    def test_a_missing_reward_is_explained_by_a_sign(self):
        stderr = "/tests/test.sh: line 7: uvx: command not found\n"
        result = assert_void(verdict("", stderr, files={}, exit_code=127), "`uvx`", "neither")
        assert result.evidence[0].where == "verifier/stderr.txt:1"
        assert result.evidence[-1].what == "the grader exited with 127"

    def test_unknown_keys_are_reported_if_grading_fails(self):
        result = assert_void(verdict(files={}, unknown_keys=("verifier.timeout_secs",)))
        assert result.evidence[-1].what == "not known, and ignored: verifier.timeout_secs"
        assert result.evidence[-1].where == "task.toml"

    def test_a_zero_inside_a_wider_range_is_examined_too(self):
        result = verdict("", GRADE_PY, reward_range=(-1.0, 1.0))
        assert_void(result, "`agent`")

    def test_the_lower_end_of_a_range_above_zero_is_examined(self):
        files = {"reward.txt": b"1"}
        assert_void(verdict("", GRADE_PY, files=files, reward_range=(1.0, 5.0)), "then wrote 1")


class TestValidZeros:
    @pytest.mark.parametrize(
        "noise",
        [
            NO_PARSERS,
            APP_PY,
            "curl: (6) Could not resolve host: astral.sh\n",
            "ERROR: No matching distribution found for x\n",
            "/tests/test.sh: line 7: uvx: command not found\n",
            "No module named 'log_parsers'\n",
            "could not import log_parsers\n",
            "SyntaxError: invalid syntax\n",
        ],
    )
    def test_failed_tests_are_a_valid_zero_whatever_they_printed(self, noise):
        assert_zero(verdict(noise + FAILED, noise))

    @pytest.mark.parametrize(
        ("stdout", "stderr"),
        [
            ("", ""),
            ("1c1\n< hello\n---\n> hullo\n", ""),
            ("FAIL: expected 3, got 4\n", ""),
            ("", "cmp: EOF on /app/report.txt which is empty\n"),
            ("", "cat: /app/report.txt: No such file or directory\n"),
            ("", "/tests/test.sh: line 4: ./solution.sh: No such file or directory\n"),
            ("", "/tests/test.sh: line 6: mytool: command not found\n"),
            ("", "/tests/test.sh: 6: mytool: not found\n"),
            ("", "/usr/bin/python3: No module named solution\n"),
            (
                "",
                "python3: can't open file '/app/main.py': [Errno 2] No such file or directory\n",
            ),
            ("< ok\n> Error: No module named 'yaml'\n", ""),
            ("", APP_PY),
            ("FAIL\texample/calc [build failed]\n", "./calc.go:3: undefined: Add\n"),
            ("", "error: could not compile `a` (lib) due to 1 previous error\n"),
        ],
    )
    def test_a_zero_without_a_sign_is_valid(self, stdout, stderr):
        assert_zero(verdict(stdout, stderr, exit_code=1))

    def test_a_report_alone_shows_that_tests_ran(self):
        ctrf = b'{"results": {"summary": {"tests": 2, "passed": 0, "failed": 2}}}'
        noise = "curl: (6) Could not resolve host: astral.sh\n"
        assert_zero(verdict("", noise, files={**ZERO, "ctrf.json": ctrf}))

    def test_the_work_cannot_void_its_zero_by_printing_while_it_is_tested(self):
        fakes = GRADE_PY + "SWE log parsers not found\n" + "no tests ran in 0.01s\n"
        assert_zero(verdict(fakes + FAILED))

    def test_a_fake_count_only_keeps_a_zero(self):
        assert_zero(
            verdict("1 failed in 0.01s\n", "/tests/test.sh: line 7: uvx: command not found\n")
        )


class TestSignsAfterTheTests:
    def test_a_parser_that_cannot_be_imported_after_the_tests_voids(self):
        assert_void(verdict(FAILED, GRADE_PY), "could not import `agent`, then wrote 0")

    def test_a_grader_that_reports_missing_parsers_voids(self):
        stderr = "ERROR: log parsers not found at /opt/parsers\nNo module named 'agent'\n"
        result = assert_void(verdict(FAILED, stderr), "log parsers not found")
        assert all(note.what != "no test was run" for note in result.evidence)

    def test_a_traceback_of_the_work_after_the_tests_does_not_void(self):
        assert_zero(verdict(FAILED, APP_PY))

    def test_a_traceback_through_grader_and_work_does_not_void(self):
        both = GRADE_PY.replace(
            "ModuleNotFoundError", '  File "/app/main.py", line 1, in <module>\nModuleNotFoundError'
        )
        assert_zero(verdict(FAILED, both))

    def test_a_failed_import_of_a_deliverable_after_the_tests_does_not_void(self):
        assert_zero(verdict(FAILED, GRADE_PY, instruction="Write `agent/log_parsers.py`."))


FETCHES = [
    ("curl: (6) Could not resolve host: astral.sh", "`astral.sh` with curl"),
    ("curl: (7) Failed to connect to example.org port 443 after 2 ms: Couldn't connect to server",
     "`example.org` with curl"),
    ("wget: unable to resolve host address ‘example.invalid’", "with wget"),
    ("Resolving example.invalid (example.invalid)... failed: Name or service not known.", "wget"),
    ("wget: bad address 'example.invalid'", "with wget"),
    ("fatal: unable to access 'https://example.invalid/a/b.git/': Could not resolve host: "
     "example.invalid", "with git"),
    ("ssh: Could not resolve hostname example.invalid: Name or service not known", "with git"),
    ("ERROR: Could not find a version that satisfies the requirement pytest (from versions: none)",
     "`pytest` with pip"),
    ("ERROR: No matching distribution found for pytest==8.4.1", "`pytest==8.4.1` with pip"),
    ("error: Failed to fetch: `https://example.invalid/simple/pytest/`", "with uv"),
    ("  × Failed to download `pytest==8.4.1`", "`pytest==8.4.1` with uv"),
    ("  ╰─▶ Because pytest was not found in the package registry and you require pytest,",
     "`pytest` with uv"),
    ("npm error network request to https://example.invalid/left-pad failed, reason: getaddrinfo "
     "ENOTFOUND example.invalid", "with npm"),
    ("npm ERR! code EAI_AGAIN", "with npm"),
    ("E: Unable to locate package curl", "`curl` with apt-get"),
    ("E: Failed to fetch http://deb.example.invalid/x.deb  Temporary failure resolving", "apt-get"),
    ('go: example.org/x@v1.0.0: Get "https://proxy.golang.org/x": dial tcp: lookup '
     "proxy.golang.org: no such host", "with go"),
    ("  failed to download from `https://index.example.invalid/config.json`", "with cargo"),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "huggingface"),
]  # fmt: skip


class TestFetches:
    @pytest.mark.parametrize(("line", "message"), FETCHES)
    def test_a_failed_fetch_before_a_zero_voids_and_is_named(self, line, message):
        result = assert_void(verdict("", f"setting up\n{line}\n"), "could not fetch", message)
        assert result.evidence[0].where == "verifier/stderr.txt:2"
        assert [n.what for n in result.evidence[1:]] == [
            "no test was run",
            "reward.txt held 0 and was not used",
        ]

    @pytest.mark.parametrize(
        "line",
        [
            "curl: (7) Failed to connect to localhost port 8080 after 0 ms: Couldn't connect",
            "curl: (7) Failed to connect to 127.0.0.1 port 9 after 0 ms: Couldn't connect",
            "curl: (6) Could not resolve host: web",
            "curl: (52) Empty reply from server",
            "curl: (22) The requested URL returned error: 404",
            "W: Failed to fetch http://deb.example.invalid/x  Temporary failure resolving",
            "WARNING: Retrying after connection broken by 'NewConnectionError'",
            "fatal: not a git repository (or any of the parent directories): .git",
            "panic: dial tcp: lookup db: no such host",
            "my curl: (6) Could not resolve host: astral.sh",
            "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
        ],
    )
    def test_a_service_under_test_that_is_down_is_a_valid_zero(self, line):
        assert_zero(verdict("", line + "\n"))

    def test_a_failed_fetch_of_a_mentioned_host_blames_the_work(self):
        line = "curl: (6) Could not resolve host: data.example.org\n"
        assert_zero(verdict("", line, instruction="Mirror https://data.example.org/x to /app."))

    def test_an_unavailable_requirement_of_the_agent_blames_the_work(self):
        line = "ERROR: No matching distribution found for nonsense-9\n"
        instruction = "Write /app/requirements.txt for the project."
        assert_zero(verdict("", line, instruction=instruction))
        offline = "Failed to establish a new connection: [Errno -2] Name or service not known\n"
        assert_void(verdict("", offline + line, instruction=instruction), "nonsense-9")

    def test_a_failed_fetch_in_python_of_the_grader_voids(self):
        stderr = (
            "Traceback (most recent call last):\n"
            '  File "/tests/grade.py", line 4, in <module>\n'
            '  File "/usr/lib/python3.11/urllib/request.py", line 216, in urlopen\n'
            "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>\n"
        )
        assert_void(verdict("", stderr), "could not fetch what it needs with Python")
        assert_zero(verdict("", stderr.replace("/tests/grade.py", "/app/main.py")))

    def test_a_failed_request_to_the_service_under_test_does_not_void(self):
        stderr = (
            "Traceback (most recent call last):\n"
            '  File "/tests/grade.py", line 4, in <module>\n'
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=80): "
            "Max retries exceeded with url: / (Caused by [Errno 111] Connection refused)\n"
        )
        assert_zero(verdict("", stderr))

    def test_a_failed_fetch_explains_a_failed_import_of_the_work(self):
        stderr = "ERROR: No matching distribution found for flask\n" + APP_PY
        assert_void(verdict("", stderr), "`flask` with pip")


class TestTools:
    @pytest.mark.parametrize(
        ("line", "tool"),
        [
            ("/tests/test.sh: line 7: uvx: command not found", "uvx"),
            ("/tests/test.sh: 7: uvx: not found", "uvx"),
            ("test.sh: line 1: pytest: command not found", "pytest"),
            ("bash: line 1: pytest: command not found", "pytest"),
            ("sh: 1: pytest: not found", "pytest"),
            ("/tests/test.sh: line 3: python3.13: command not found", "python3.13"),
            ("/tests/test.sh: line 2: /root/.local/bin/env: No such file or directory", "uv"),
            ("/tests/test.sh: line 3: /root/.venv/bin/pytest: No such file or directory", "pytest"),
            ("env: ‘python’: No such file or directory", "python"),
            ("/usr/bin/env: 'node': No such file or directory", "node"),
            ("timeout: failed to run command ‘uvx’: No such file or directory", "uvx"),
            ("/usr/bin/python3: No module named pytest", "pytest"),
            ("error: No interpreter found for Python 3.13 in managed installations", "Python 3.13"),
        ],
    )
    def test_a_missing_tool_voids_and_is_named(self, line, tool):
        assert_void(verdict("", line + "\n", exit_code=127), f"could not run `{tool}`")

    @pytest.mark.parametrize(
        "line",
        [
            "/app/run.sh: line 3: jq: command not found",
            "./run.sh: line 3: python: command not found",
            "/tests/test.sh: line 4: ./gradlew: No such file or directory",
            "/tests/test.sh: line 4: /app/.venv/bin/python: No such file or directory",
            "uvx: command not found",
            "env: ‘mytool’: No such file or directory",
        ],
    )
    def test_a_missing_command_of_the_work_is_a_valid_zero(self, line):
        assert_zero(verdict("", line + "\n"))

    def test_a_missing_tool_that_is_a_deliverable_blames_the_work(self):
        line = "/tests/test.sh: line 3: jq: command not found\n"
        assert_zero(verdict("", line, instruction="Install jq so that it is on the PATH."))
        assert_void(verdict("", line, instruction="Use jq if you like."), "`jq`")

    def test_a_missing_tool_that_is_only_mentioned_blames_the_grader(self):
        line = "/usr/bin/python3: No module named pytest\n"
        assert_void(verdict("", line, instruction="`pytest` must pass."), "`pytest`")


class TestImports:
    def test_a_failed_import_of_the_grader_voids_and_the_module_is_named(self):
        stdout = collection("/tests/test_outputs.py", IN_TESTS, NO_PARSERS)
        result = assert_void(
            verdict(stdout), "the grader could not import `log_parsers`, then wrote 0"
        )
        assert result.evidence[0].what == "E ModuleNotFoundError: No module named 'log_parsers'"
        assert result.evidence[0].where == "verifier/stdout.txt:14"

    @pytest.mark.parametrize(
        "instruction",
        [
            "Write log_parsers.py.",
            "Create the package log_parsers/ in /app.",
            "The module `log_parsers` must exist.",
            "It must work with `from log_parsers import parse`.",
            "Install the library log_parsers.",
            "Put the code in /app/src/log_parsers.",
            "Write a module called log_parsers.",
        ],
    )
    def test_a_missing_module_that_is_a_deliverable_blames_the_work(self, instruction):
        stdout = collection("/tests/test_outputs.py", IN_TESTS, NO_PARSERS)
        assert_zero(verdict(stdout, instruction=instruction))

    def test_a_failed_import_of_the_work_blames_the_work(self):
        frames = IN_TESTS + "dep.py:1: in <module>\n    import flasky\n"
        error = "E   ModuleNotFoundError: No module named 'flasky'\n"
        assert_zero(verdict(collection("/tests/test_outputs.py", frames, error)))

    def test_a_name_that_the_work_lacks_blames_the_work(self):
        error = "E   ImportError: cannot import name 'area' from 'shapes' (/app/shapes.py)\n"
        assert_zero(verdict(collection("/tests/test_outputs.py", IN_TESTS, error)))

    def test_a_name_that_a_file_of_the_grader_lacks_voids(self):
        error = "E   ImportError: cannot import name 'check' from 'helpers' (/tests/helpers.py)\n"
        stdout = collection("/tests/test_outputs.py", IN_TESTS, error)
        assert_void(verdict(stdout), "`check` from `helpers`")

    def test_a_name_that_a_library_lacks_voids(self):
        error = (
            "E   ImportError: cannot import name 'Mapping' from 'collections' "
            "(/usr/lib/python3.11/collections/__init__.py)\n"
        )
        stdout = collection("/tests/test_outputs.py", IN_TESTS, error)
        assert_void(verdict(stdout), "`Mapping` from `collections`")

    def test_a_missing_module_of_a_mentioned_package_blames_the_work(self):
        error = "E   ModuleNotFoundError: No module named 'shapely.extras'\n"
        stdout = collection("/tests/test_outputs.py", IN_TESTS, error)
        assert_zero(verdict(stdout, instruction="shapely cannot simplify lines. Mend it."))

    def test_a_missing_helper_of_the_tests_blames_the_grader(self):
        frames = (
            "test_outputs.py:2: in <module>\n    import helpers\n"
            "helpers.py:1: in <module>\n    import log_parsers\n"
        )
        stdout = collection("/tests/test_outputs.py", frames, NO_PARSERS)
        assert_void(verdict(stdout.replace("ERROR ../tests/", "ERROR ")), "`log_parsers`")
        assert_zero(verdict(stdout))

    def test_tests_in_the_working_directory_belong_to_the_work(self):
        frames = "tests/test_mine.py:1: in <module>\n    import flasky\n"
        error = "E   ModuleNotFoundError: No module named 'flasky'\n"
        assert_zero(verdict(collection("/app/tests/test_mine.py", frames, error)))

    def test_a_script_of_the_grader_that_cannot_import_voids(self):
        result = assert_void(verdict("", "grading\n" + GRADE_PY), "could not import `agent`")
        assert result.evidence[0].where == "verifier/stderr.txt:5"

    def test_inline_python_of_the_grader_voids(self):
        stderr = (
            "Traceback (most recent call last):\n"
            '  File "<stdin>", line 1, in <module>\n'
            "ModuleNotFoundError: No module named 'log_parsers'\n"
        )
        assert_void(verdict("", stderr), "`log_parsers`")
        assert_zero(verdict("", stderr, instruction="Write /app/log_parsers.py"))

    def test_a_library_that_fails_for_the_grader_voids_and_for_the_work_does_not(self):
        stderr = (
            "Traceback (most recent call last):\n"
            '  File "/tests/grade.py", line 1, in <module>\n'
            "    import pandas\n"
            '  File "/usr/lib/python3/dist-packages/pandas/__init__.py", line 16, in <module>\n'
            "ImportError: Unable to import required dependencies:\n"
        )
        assert_void(verdict("", stderr), "could not import a library")
        assert_zero(verdict("", stderr.replace("/tests/grade.py", "/app/main.py")))

    def test_a_failed_import_that_unittest_counts_voids(self):
        stderr = (
            "E\n"
            "======================================================================\n"
            "ERROR: test_u (unittest.loader._FailedTest.test_u)\n"
            "----------------------------------------------------------------------\n"
            "ImportError: Failed to import test module: test_u\n"
            "Traceback (most recent call last):\n"
            '  File "/usr/lib/python3.11/unittest/loader.py", line 162, in loadTestsFromName\n'
            "    module = __import__(module_name)\n"
            "             ^^^^^^^^^^^^^^^^^^^^^^^\n"
            '  File "/tests/test_u.py", line 2, in <module>\n'
            "    import log_parsers\n"
            "ModuleNotFoundError: No module named 'log_parsers'\n\n\n"
            "----------------------------------------------------------------------\n"
            "Ran 1 test in 0.000s\n\nFAILED (errors=1)\n"
        )
        assert_void(verdict("", stderr), "`log_parsers`")
        work = stderr.replace(
            "    import log_parsers\n",
            '    import app\n  File "/app/app.py", line 1, in <module>\n    import log_parsers\n',
        )
        assert_zero(verdict("", work))

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("Error: No module named 'log_parsers'", "`log_parsers`"),
            ("could not import log_parsers, giving 0", "`log_parsers`"),
            ("SWE-style log parsers not found", "parsers not found"),
        ],
    )
    def test_a_caught_and_printed_import_error_voids(self, line, message):
        assert_void(verdict(line + "\n"), message)

    def test_a_caught_import_error_of_a_deliverable_does_not_void(self):
        line = "Error: No module named 'solution'\n"
        assert_zero(verdict(line, instruction="Write solution.py"))

    def test_pylint_output_about_the_work_is_not_an_import_error(self):
        line = "app.py:1:0: E0401: Unable to import 'numpy' (import-error)\n"
        assert_zero(verdict(line))

    @pytest.mark.parametrize(
        ("text", "void"),
        [
            ("Error: Cannot find module 'chai'\nRequire stack:\n- /tests/a.test.js\n", True),
            ("Error [X]: Cannot find package 'chai' imported from /tests/a.mjs\n", True),
            ("    Cannot find module 'chai' from '../tests/a.test.js'\n", True),
            ("Error: Cannot find module 'express'\nRequire stack:\n- /app/index.js\n", False),
            ("Error: Cannot find module '/app/index.js'\n    at Module._resolveFilename\n", False),
            ("Error: Cannot find module '../app/c'\nRequire stack:\n- /tests/a.test.js\n", False),
        ],
    )  # fmt: skip
    def test_a_missing_module_of_node_is_judged_by_its_importer(self, text, void):
        result = verdict("", text)
        assert_void(result, "`chai`") if void else assert_zero(result)


JEST = """\
 FAIL  ../tests/calc.test.js
  ● Test suite failed to run

{}
Test Suites: 1 failed, 1 total
Tests:       0 total
"""


class TestOtherLanguages:
    @pytest.mark.parametrize(
        "error",
        [
            "    Cannot find module '../app/calc' from '../tests/calc.test.js'\n",
            "    SyntaxError: /app/calc.js: Unexpected token (1:3)\n",
            "    ReferenceError: y is not defined\n\n"
            "      at Object.y (/app/calc.js:1:9)\n"
            "      at Object.require (/tests/calc.test.js:1:14)\n",
        ],
    )
    def test_a_suite_that_fails_to_load_because_of_the_work_is_a_valid_zero(self, error):
        assert_zero(verdict("", JEST.format(error)))

    @pytest.mark.parametrize(
        "error",
        [
            "    SyntaxError: /tests/calc.test.js: Unexpected token (1:3)\n",
            "    ReferenceError: y is not defined\n\n      at Object.y (/tests/calc.test.js:1:9)\n",
        ],
    )
    def test_a_suite_that_fails_to_load_by_itself_voids(self, error):
        assert_void(verdict("", JEST.format(error)), "jest collected no tests")

    def test_a_missing_ruby_file_of_the_work_is_a_valid_zero(self):
        text = (
            "LoadError:\n  cannot load such file -- {}\n"
            "0 examples, 0 failures, 1 error occurred outside of examples\n"
        )
        assert_zero(verdict(text.format("/app/lib/calc")))
        assert_zero(verdict(text.format("calc"), instruction="Write lib/calc.rb"))
        assert_void(verdict(text.format("webmock")), "rspec collected no tests")


class TestCollection:
    @pytest.mark.parametrize(
        ("stdout", "message"),
        [
            ("collected 0 items\n\n=== no tests ran in 0.01s ===\n", "pytest collected no tests"),
            ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", "unittest collected no tests"),
            ("No tests found, exiting with code 1\n", "jest collected no tests"),
            ("?   \texample/calc\t[no test files]\n", "go test collected no tests"),
            ("TAP version 13\n1..0\n", "TAP collected no tests"),
            ("ERROR: file or directory not found: /tests/nope.py\n", "/tests/nope.py"),
            ("ERROR: not found: /tests/test_a.py::test_b\n", "/tests/test_a.py::test_b"),
            ("python -m pytest: error: unrecognized arguments: --ctrf\n", "--ctrf"),
            ("ERROR: Error importing plugin \"xdist\": No module named 'xdist'\n", "`xdist`"),
            ("INTERNALERROR> KeyError: 'x'\n", "KeyError"),
        ],
    )
    def test_a_runner_that_ran_nothing_voids(self, stdout, message):
        assert_void(verdict(stdout), message)
        assert_void(verdict("", stdout), message)

    def test_a_report_of_no_tests_voids(self):
        ctrf = b'{"results": {"summary": {"tests": 0, "passed": 0, "failed": 0}}}'
        result = assert_void(verdict(files={**ZERO, "ctrf.json": ctrf}), "collected no tests")
        assert result.evidence[0].where == "verifier/ctrf.json"

    def test_missing_tests_that_are_a_deliverable_blame_the_work(self):
        instruction = "Write unit tests for /app/calc.py in /app/test_calc.py."
        assert_zero(verdict("=== no tests ran in 0.01s ===\n", instruction=instruction))
        missing = "ERROR: file or directory not found: /app/test_calc.py\n"
        assert_zero(verdict(missing, instruction=instruction))

    def test_a_missing_fixture_voids(self):
        stdout = (
            "___________________________ ERROR at setup of test_a ___________________________\n"
            "E       fixture 'mocker' not found\n"
            "ERROR ../tests/test_fix.py::test_a\n"
            "=============================== 1 error in 0.01s ===============================\n"
        )
        assert_void(verdict(stdout), "`mocker`")
        assert_zero(verdict(stdout.replace("1 error in", "1 failed, 1 error in")))

    def test_a_failing_fixture_is_a_valid_zero(self):
        stdout = (
            "___________________________ ERROR at setup of test_a ___________________________\n"
            "E   RuntimeError: the server did not start\n"
            "ERROR ../tests/test_setup.py::test_a - RuntimeError: x\n"
            "=============================== 1 error in 0.02s ===============================\n"
        )
        assert_zero(verdict(stdout))

    @pytest.mark.parametrize(
        "error",
        [
            "E   FileNotFoundError: [Errno 2] No such file or directory: '/app/report.txt'\n",
            "E   AssertionError: no report\n",
            "E   json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
            "E   AttributeError: module 'calc' has no attribute 'add'\n",
        ],
    )
    def test_a_collection_error_because_of_the_work_is_a_valid_zero(self, error):
        frames = "../tests/test_outputs.py:1: in <module>\n    x = 1\n"
        assert_zero(verdict(collection("/tests/test_outputs.py", frames, error, importing=False)))

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ("E   NameError: name 'x' is not defined\n", "NameError"),
            ("E   FileNotFoundError: [Errno 2] No such file or directory: '/tests/expected.json'\n",
             "/tests/expected.json"),
            ("E   FileNotFoundError: [Errno 2] No such file or directory: 'uv'\n", "FileNotFound"),
        ],
    )  # fmt: skip
    def test_a_collection_error_of_the_tests_voids(self, error, message):
        frames = "../tests/test_outputs.py:1: in <module>\n    x = 1\n"
        stdout = collection("/tests/test_outputs.py", frames, error, importing=False)
        assert_void(verdict(stdout), message)

    def test_an_error_without_frames_is_judged_by_its_module(self):
        error = "E   FileNotFoundError: [Errno 2] No such file or directory: '/app/x'\n"
        assert_zero(verdict(collection("/tests/test_outputs.py", "", error, importing=False)))
        error = "E   NameError: name 'x' is not defined\n"
        stdout = collection("/tests/test_outputs.py", "", error, importing=False)
        assert_void(verdict(stdout), "the grader's test_outputs.py raised NameError before")

    def test_an_error_of_the_work_on_import_is_a_valid_zero(self):
        frames = (
            "../tests/test_outputs.py:1: in <module>\n    import calc\ncalc.py:3: in <module>\n"
        )
        error = "E   NameError: name 'x' is not defined\n"
        assert_zero(verdict(collection("/tests/test_outputs.py", frames, error, importing=False)))

    def test_a_grader_script_that_crashes_on_the_work_is_a_valid_zero(self):
        stderr = (
            "Traceback (most recent call last):\n"
            '  File "/tests/grade.py", line 9, in <module>\n'
            "KeyError: 'total'\n"
        )
        assert_zero(verdict("", stderr, exit_code=1))


class TestFilesOfTheTask:
    def syntax(self, path: str) -> str:
        error = (
            f'E     File "{path}", line 1\n'
            "E       def f(:\n"
            "E             ^\n"
            "E   SyntaxError: invalid syntax\n"
        )
        frames = "../tests/test_outputs.py:2: in <module>\n    import main\n"
        return collection("/tests/test_outputs.py", frames, error, importing=False)

    def test_a_test_file_with_a_syntax_error_blames_the_task(self):
        result = verdict(self.syntax("/tests/test_outputs.py"))
        assert_void(result, "/tests/test_outputs.py", "line 1", cause=Cause.TASK)

    def test_a_file_of_the_work_with_a_syntax_error_is_a_valid_zero(self):
        assert_zero(verdict(self.syntax("/app/main.py")))

    def test_a_syntax_error_in_eval_of_the_work_is_a_valid_zero(self):
        stderr = (
            "Traceback (most recent call last):\n"
            '  File "/app/calc.py", line 3, in <module>\n'
            '  File "<string>", line 1\n'
            "    1 +\n"
            "SyntaxError: invalid syntax\n"
        )
        assert_zero(verdict("", stderr))

    @pytest.mark.parametrize(
        "line",
        [
            "/tests/test.sh: line 4: syntax error: unexpected end of file",
            "/tests/test.sh: line 1: syntax error near unexpected token `fi'",
            "/tests/test.sh: line 1: unexpected EOF while looking for matching `\"'",
            '/tests/test.sh: 4: Syntax error: end of file unexpected (expecting "fi")',
            "/tests/test.sh: line 3: $'\\r': command not found",
            "/usr/bin/env: ‘bash\\r’: No such file or directory",
            "bash: /tests/test.sh: /bin/bash^M: bad interpreter: No such file or directory",
            "/tests/test.sh: /bin/bash^M: bad interpreter: No such file or directory",
        ],
    )
    def test_an_unrunnable_script_blames_the_task(self, line):
        for files in ({}, ZERO):
            assert_void(verdict("", line + "\n", files=files, exit_code=2), cause=Cause.TASK)

    def test_a_script_of_the_work_with_a_syntax_error_is_a_valid_zero(self):
        assert_zero(verdict("", "/app/run.sh: line 4: syntax error: unexpected end of file\n"))
        assert_zero(verdict("", "/app/run.sh: line 3: $'\\r': command not found\n"))

    @pytest.mark.parametrize(
        "line",
        [
            "cat: /tests/expected.txt: No such file or directory",
            "python3: can't open file '/tests/grade.py': [Errno 2] No such file or directory",
            "/tests/test.sh: line 5: cd: /tests/data: No such file or directory",
            "/tests/test.sh: 5: cd: can't cd to /tests/data",
            "ls: cannot access '/opt/parsers/lib': No such file or directory",
        ],
    )
    def test_a_missing_file_of_the_grader_voids(self, line):
        assert_void(verdict("", line + "\n"), "which is missing")

    def test_a_missing_file_under_opt_that_is_a_deliverable_blames_the_work(self):
        line = "cat: /opt/service/config.ini: No such file or directory\n"
        assert_zero(verdict("", line, instruction="Set up the service in /opt/service."))


@pytest.mark.parametrize(
    "piece",
    [
        "=",
        "_",
        " ",
        "\n",
        "a",
        "curl: (6) Could not resolve host: ",
        "curl: (7) Failed to connect to localhost port 1\n",
        "1 passed in 0.1s\n",
        "1 error in 0.1s\n",
        "x.py::" + "y" * 200 + "\n",
        "Traceback (most recent call last):\n",
        '  File "/tests/a.py", line 1\n',
        "a:1: in <module>\n",
        "E   ModuleNotFoundError: No module named 'x'\n",
        "/tests/test.sh: line 1: a: command not found\n",
        "/tests/" * 40 + "\n",
        "No module named 'asked'\n",
        "Resolving a [" + "." * 280 + "\n",
        "ok 1\n",
        "Error: Cannot find module 'x'\n",
        "- Tests: " + "1 x," * 60 + "\n",
    ],
)
def test_no_text_makes_the_judge_slow(piece):
    text = (piece * (512 * 1024 // len(piece) + 1))[: 512 * 1024]
    started = time.process_time()
    verdict(text, text, instruction="Write `asked`")
    assert time.process_time() - started < 20  # a few seconds at most; quadratic would be hours
