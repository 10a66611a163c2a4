"""Summaries of test runners are parsed from their output."""

import json

import pytest

from plimsoll.trials.runner_counts import (
    RunnerCount,
    any_ran,
    count_ctrf,
    count_runs,
)
from plimsoll.trials.signs.output import Output

PYTEST = """\
============================= test session starts ==============================
platform linux -- Python 3.11.7, pytest-9.2.0, pluggy-1.7.0
rootdir: /tests
collected 2 items

../tests/test_fail.py F.                                                 [100%]

=================================== FAILURES ===================================
E   assert 1 == 2
=========================== short test summary info ============================
FAILED ../tests/test_fail.py::test_a - assert 1 == 2
========================= 1 failed, 1 passed in 0.02s ==========================
"""
COLOURED = (
    "\x1b[31m========================= \x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m1 passed\x1b[0m"
    "\x1b[31m in 0.06s\x1b[0m\x1b[31m ==========================\x1b[0m\n"
)
QUIETER = """\
F.                                                                       [100%]
=========================== short test summary info ============================
FAILED ../tests/test_fail.py::test_a - assert 1 == 2
"""
XDIST = """\
[gw0] [ 50%] PASSED tests/test_a.py::test_x
[gw1] [100%] FAILED tests/test_a.py::test_y[a b]
"""
UNITTEST = """\
FEs
----------------------------------------------------------------------
Ran 3 tests in 0.001s

FAILED (failures=1, errors=1, skipped=1)
"""
GO = """\
=== RUN   TestAdd
--- FAIL: TestAdd (0.00s)
    add_test.go:9: got 3
--- PASS: TestSub (0.00s)
FAIL
FAIL\texample/calc\t0.003s
"""
CARGO = """\
running 2 tests
test result: FAILED. 0 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.15s
   Doc-tests a
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
JEST = """\
Test Suites: 1 failed, 1 total
Tests:       1 failed, 2 passed, 3 total
Snapshots:   0 total
"""
VITEST = " Test Files  1 failed (1)\n      Tests  1 failed | 2 passed (3)\n"
MOCHA = "  calc\n    ✓ adds\n\n  1 passing (5ms)\n  2 failing\n"
TAP = "TAP version 13\nok 1 - a\nnot ok 2 - b\nok 3 - c # SKIP no disk\n1..3\n"
NODE = "ℹ tests 2\nℹ suites 0\nℹ pass 1\nℹ fail 1\n"
CTEST = "50% tests passed, 1 tests failed out of 2\n"
MAVEN = "[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1\n"
GRADLE = "3 tests completed, 1 failed, 1 skipped\n"
RSPEC = "Finished in 0.01 seconds\n3 examples, 1 failure, 1 pending\n"
PHPUNIT = "FAILURES!\nTests: 3, Assertions: 4, Failures: 1, Skipped: 1.\n"
NEXTEST = "     Summary [   0.005s] 2 tests run: 1 passed, 1 failed, 0 skipped\n"


@pytest.mark.parametrize(
    ("text", "runner", "passed", "failed"),
    [
        (PYTEST, "pytest", 1, 1),
        (COLOURED, "pytest", 1, 1),
        (QUIETER, "pytest", 0, 1),
        (XDIST, "pytest", 1, 1),
        ("1 failed, 1 passed in 0.03s\n", "pytest", 1, 1),
        ("=== 3 passed, 2 warnings in 61.20s (0:01:01) ===\n", "pytest", 3, 0),
        ("=== 1 failed, 2 xfailed, 1 xpassed in 1.20 seconds ===\n", "pytest", 3, 1),
        (UNITTEST, "unittest", 0, 1),
        ("Ran 2 tests in 0.000s\n\nOK\n", "unittest", 2, 0),
        (GO, "go test", 1, 1),
        ("ok  \texample/calc\t(cached)\n", "go test", 1, 0),
        ("panic: x\nFAIL\texample/calc\t0.01s\n", "go test", 0, 1),
        (CARGO, "cargo test", 0, 1),
        (NEXTEST, "nextest", 1, 1),
        (JEST, "jest", 2, 1),
        (VITEST, "jest", 2, 1),
        (MOCHA, "mocha", 1, 2),
        (TAP, "TAP", 1, 1),
        (NODE, "node --test", 1, 1),
        (CTEST, "ctest", 1, 1),
        (MAVEN, "maven", 1, 1),
        (GRADLE, "gradle", 1, 1),
        (RSPEC, "rspec", 1, 1),
        (PHPUNIT, "phpunit", 1, 1),
        ("OK (4 tests, 5 assertions)\n", "phpunit", 4, 0),
    ],
)
def test_summaries_are_counted(text, runner, passed, failed):
    counts = count_runs(Output("stdout", text).text)
    assert [(c.runner, c.passed, c.failed) for c in counts] == [(runner, passed, failed)]
    assert any_ran(counts)


@pytest.mark.parametrize(
    ("text", "runner"),
    [
        ("collected 0 items\n\n=== no tests ran in 0.01s ===\n", "pytest"),
        ("\nno tests ran in 0.01s\n", "pytest"),
        ("collected 2 items / 2 deselected\n=== 2 deselected in 0.01s ===\n", "pytest"),
        ("Ran 0 tests in 0.000s\n\nOK\n", "unittest"),
        ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", "unittest"),
        ("?   \texample/calc\t[no test files]\n", "go test"),
        ("testing: warning: no tests to run\nPASS\nok  \tx\t0.1s [no tests to run]\n", "go test"),
        (CARGO.split("Doc-tests a\n")[1], "cargo test"),
        ("No tests found, exiting with code 1\n", "jest"),
        ("Test Suites: 1 failed, 1 total\nTests:       0 total\n", "jest"),
        (" Test Files  1 failed (1)\n      Tests  no tests\n", "jest"),
        ("\n  0 passing (1ms)\n", "mocha"),
        ("TAP version 13\n1..0\n", "TAP"),
        ("No tests were found!!!\n", "ctest"),
        ("Tests run: 0, Failures: 0, Errors: 0, Skipped: 0\n", "maven"),
        ("0 examples, 0 failures, 1 error occurred outside of examples\n", "rspec"),
        ("No tests executed!\n", "phpunit"),
    ],
)
def test_a_runner_that_found_nothing_ran_nothing(text, runner):
    counts = count_runs(text)
    assert [c.runner for c in counts] == [runner]
    assert counts[0].collected_nothing
    assert not any_ran(counts)


def test_a_collection_error_is_not_a_test_that_ran():
    text = (
        "collected 0 items / 1 error\n"
        "!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!\n"
        "=============================== 1 error in 0.15s ===============================\n"
    )
    (count,) = count_runs(text)
    assert (count.errors, count.interrupted, count.line) == (1, True, 3)
    assert not any_ran([count])


def test_a_set_up_error_of_a_test_is_a_test_that_ran():
    text = (
        "___________________________ ERROR at setup of test_a ___________________________\n"
        "ERROR ../tests/test_setup.py::test_a - RuntimeError: x\n"
        "=============================== 1 error in 0.02s ===============================\n"
    )
    assert any_ran(count_runs(text))


def test_a_failed_import_that_unittest_counts_is_not_a_test():
    text = (
        "ERROR: test_u (unittest.loader._FailedTest.test_u)\n"
        "ImportError: Failed to import test module: test_u\n"
        "Ran 1 test in 0.000s\n\nFAILED (errors=1)\n"
    )
    (count,) = count_runs(text)
    assert count.interrupted
    assert not count.ran


def test_one_failed_import_beside_tests_that_ran_leaves_them_counted():
    text = (
        "ERROR: test_u (unittest.loader._FailedTest.test_u)\n"
        "Ran 3 tests in 0.000s\n\nFAILED (failures=1, errors=1)\n"
    )
    (count,) = count_runs(text)
    assert (count.passed, count.failed, count.ran) == (1, 1, True)


def test_a_failed_set_up_of_a_class_is_a_test_that_ran():
    text = "ERROR: setUpClass (test_w.T)\nRan 0 tests in 0.001s\n\nFAILED (errors=1)\n"
    assert any_ran(count_runs(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 failed attempt to log in\n",
        "passed\n",
        "files differ: 3 passed over\n",
        "FAIL\texample/calc [build failed]\n",
        "error: could not compile `a` (lib) due to 1 previous error\n",
        "Tests: see below\n",
        "Ran out of tests in 3 s\n",
    ],
)
def test_plain_output_has_no_summary(text):
    assert count_runs(text) == []


def test_a_ctrf_report_is_counted():
    report = {"results": {"summary": {"tests": 3, "passed": 1, "failed": 1, "skipped": 1}}}
    assert count_ctrf(json.dumps(report).encode()) == RunnerCount("ctrf", 1, 1, 0, 1)
    empty = count_ctrf(b'{"results": {"summary": {"tests": 0, "passed": 0, "failed": 0}}}')
    assert empty is not None
    assert empty.collected_nothing


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"results": 1}', b"[" * 100_000, b"null"]
)
def test_other_data_is_not_a_ctrf_report(data):
    assert count_ctrf(data) is None
