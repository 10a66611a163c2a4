"""Summaries of test runners, parsed from their output and from CTRF reports.

Tests *ran* if at least one passed or failed, or if the set-up of a test failed. A runner that
collected nothing, or stopped during collection, ran no tests.
"""

import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["RunnerCount", "any_ran", "count_ctrf", "count_runs"]


@dataclass(frozen=True, slots=True)
class RunnerCount:
    """One summary of one runner. `interrupted` means that collection failed."""

    runner: str
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    collected_nothing: bool = False
    interrupted: bool = False
    line: int = 0
    """Line of the text, from 1; 0 for a report."""

    @property
    def ran(self) -> bool:
        in_set_up = self.errors > 0 and not self.interrupted
        return self.passed + self.failed > 0 or in_set_up


def any_ran(counts: list[RunnerCount]) -> bool:
    return any(count.ran for count in counts)


def count_runs(text: str) -> list[RunnerCount]:
    """Return all summaries in a text without colour codes, in no particular order."""
    return [count for reader in _READERS for count in reader(text)]


def count_ctrf(data: bytes) -> RunnerCount | None:
    """Return the summary of a CTRF report; None if it is not one."""
    try:
        report: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for key in ("results", "summary"):
        report = cast("dict[str, Any]", report).get(key) if isinstance(report, dict) else None
    if not isinstance(report, dict):
        return None
    summary = cast("dict[str, Any]", report)

    def number(key: str) -> int:
        value = summary.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    return RunnerCount(
        "ctrf",
        passed=number("passed"),
        failed=number("failed"),
        skipped=number("skipped") + number("pending"),
        collected_nothing=summary.get("tests") == 0,
    )


def _last(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Return the last matches; many forged summaries must not make the search quadratic."""
    return list(deque(pattern.finditer(text), maxlen=200))


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _numbers(text: str) -> dict[str, int]:
    """Parse `1 failed, 2 passed` to a mapping with singular words."""
    found = re.findall(r"(\d{1,9}) ([a-z]{3,12})", text)
    return {word.removesuffix("s"): int(count) for count, word in found}


_PYTEST = re.compile(
    r"^(?:=+ )?(no tests ran|\d{1,9} (?:passed|failed|errors?|skipped|xfailed|xpassed|deselected"
    r"|warnings?|rerun|subtests passed|subtests failed)(?:, [^\n=]{0,200})?)"
    r" in \d[\d.:]{0,20} ?s(?:econds)?(?: \([\d:, a-z]{1,40}\))?(?: =+)?$",
    re.M,
)
_PYTEST_STOPPED = re.compile(
    r"^!+ (?:[^\n!]{0,80}Interrupted: \d{1,9} errors? during collection|_pytest\.outcomes\.Exit)",
    re.M,
)
_PYTEST_COLLECTING = re.compile(r"^_+ ERROR collecting ", re.M)
_PYTEST_BROKEN = re.compile(r"^ERROR [^\s:]{1,500}\.py(?: - |$)", re.M)
_PYTEST_TEST = re.compile(
    r"^(?:\[gw\d{1,4}\] \[ *\d{1,3}%\] )?(?:(PASSED|FAILED|XPASS|XFAIL|ERROR) )?"
    r"[^\s:]{1,500}\.py::[^\n]{1,500}?(?: (PASSED|FAILED|XPASS|XFAIL|ERROR)\b|$| - )",
    re.M,
)
_PYTEST_NOTHING = re.compile(r"^collected 0 items(?: / \d{1,9} errors?)?$", re.M)


def _pytest(text: str) -> list[RunnerCount]:
    summaries = _last(_PYTEST, text)
    if not summaries:
        return _pytest_quiet(text)
    stopped = _PYTEST_STOPPED.search(text) is not None
    broken = max(len(_PYTEST_COLLECTING.findall(text)), len(_PYTEST_BROKEN.findall(text)))
    counts: list[RunnerCount] = []
    for match in summaries:
        seen = _numbers(match[1])
        errors = seen.get("error", 0)
        ran = {word: seen.get(word, 0) for word in ("passed", "failed", "xfailed", "xpassed")}
        in_collection = stopped or broken >= errors
        counts.append(
            RunnerCount(
                "pytest",
                passed=ran["passed"] + ran["xfailed"] + ran["xpassed"],
                failed=ran["failed"],
                errors=errors,
                skipped=seen.get("skipped", 0),
                collected_nothing=not any(ran.values()) and not errors and "skipped" not in seen,
                interrupted=errors > 0 and in_collection,
                line=_line(text, match),
            )
        )
    return counts


def _pytest_quiet(text: str) -> list[RunnerCount]:
    """Count the lines of single tests, for output with -qq or truncated output."""
    tests = list(_PYTEST_TEST.finditer(text))
    outcomes = [match[1] or match[2] for match in tests]
    passed = sum(word in ("PASSED", "XPASS", "XFAIL") for word in outcomes)
    failed, errors = outcomes.count("FAILED"), outcomes.count("ERROR")
    if passed + failed + errors:
        line = _line(text, tests[-1])
        return [RunnerCount("pytest", passed=passed, failed=failed, errors=errors, line=line)]
    if nothing := _PYTEST_NOTHING.search(text):
        stopped = "error" in nothing[0]
        return [
            RunnerCount(
                "pytest",
                collected_nothing=not stopped,
                interrupted=stopped,
                line=_line(text, nothing),
            )
        ]
    return []


_UNITTEST = re.compile(
    r"^Ran (\d{1,9}) tests? in [\d.]{1,20}s\n\n?"
    r"(?:(?:OK|FAILED|NO TESTS RAN)(?: \(([^\n)]{1,200})\))?)?",
    re.M,
)
_FAILED_IMPORT = re.compile(
    r"^ERROR: [^\n]{1,300}unittest\.loader\.(?:_FailedTest|ModuleImportFailure)|"
    r"^ERROR: Failure: (?:ModuleNotFoundError|ImportError|SyntaxError) ",
    re.M,
)


def _unittest(text: str) -> list[RunnerCount]:
    """Summaries of unittest and of nose, which prints the same."""
    imports = len(_FAILED_IMPORT.findall(text))
    counts: list[RunnerCount] = []
    for match in _last(_UNITTEST, text):
        seen = dict(re.findall(r"([A-Za-z]{3,20})=(\d{1,9})", match[2] or ""))
        skipped = int(seen.get("skipped", seen.get("SKIP", 0)))
        errors = int(seen.get("errors", 0))
        failed = int(seen.get("failures", 0))
        ran = max(0, int(match[1]) - imports - skipped)
        counts.append(
            RunnerCount(
                "unittest",
                passed=max(0, ran - failed - max(0, errors - imports)),
                failed=failed,
                errors=errors,
                skipped=skipped,
                collected_nothing=int(match[1]) == 0 and errors == 0,
                interrupted=0 < errors <= imports,
                line=_line(text, match),
            )
        )
    return counts


_GO = re.compile(
    r"^(?: {0,16}--- (PASS|FAIL|SKIP): Test"
    r"|(ok|FAIL)\s{1,8}\S{1,300}\t(?:\(cached\)|[\d.]{1,12}s)([^\n]{0,60})"
    r"|(\?)\s{1,8}\S{1,300}\t\[no test files\]|(testing: warning: no tests to run))",
    re.M,
)


def _go(text: str) -> list[RunnerCount]:
    found = list(_GO.finditer(text))
    if not found:
        return []
    tests = [match[1] for match in found if match[1]]
    packages = [match[2] for match in found if match[2] and "no tests to run" not in match[3]]
    passed = tests.count("PASS") or packages.count("ok")
    failed = tests.count("FAIL") or packages.count("FAIL")
    return [
        RunnerCount(
            "go test",
            passed=passed,
            failed=failed,
            skipped=tests.count("SKIP"),
            collected_nothing=not tests and not packages,
            line=_line(text, found[-1]),
        )
    ]


_CARGO = re.compile(
    r"^test result: \w{2,8}\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;", re.M
)
_NEXTEST = re.compile(
    r"^ {0,16}Summary \[[^\]\n]{1,30}\] +(?:\d{1,9}/)?(\d{1,9}) tests? run: ([^\n]{1,200})", re.M
)


def _cargo(text: str) -> list[RunnerCount]:
    found = list(_CARGO.finditer(text))
    counts: list[RunnerCount] = []
    if found:
        # One line per target; a crate without doc tests prints a line of zeros too.
        passed, failed, skipped = (sum(int(match[i]) for match in found) for i in (1, 2, 3))
        nothing = passed + failed + skipped == 0
        line = _line(text, found[-1])
        counts.append(RunnerCount("cargo test", passed, failed, 0, skipped, nothing, line=line))
    for match in _last(_NEXTEST, text):
        seen, line = _numbers(match[2]), _line(text, match)
        passed, failed = seen.get("passed", 0), seen.get("failed", 0)
        counts.append(
            RunnerCount("nextest", passed, failed, collected_nothing=match[1] == "0", line=line)
        )
    return counts


_JEST = re.compile(r"^ {0,8}Tests(?::  {0,8}|  {1,8})([^\n]{1,200})$", re.M)
_JEST_NOTHING = re.compile(
    r"^(?:No tests found, exiting with code|No test files found, exiting with code"
    r"|No test suite found|Error: No test files found)",
    re.M,
)
_MOCHA = re.compile(r"^ {2,8}(\d{1,9}) (passing|failing|pending)(?: \([^\n)]{1,20}\))?$", re.M)


def _javascript(text: str) -> list[RunnerCount]:
    counts: list[RunnerCount] = []
    for match in _last(_JEST, text):
        seen, line = _numbers(match[1]), _line(text, match)
        total = re.search(r"(\d{1,9}) total|\((\d{1,9})\)|no tests", match[1])
        if not seen and not total:
            continue
        passed, failed = seen.get("passed", 0), seen.get("failed", 0)
        skipped = seen.get("skipped", 0) + seen.get("todo", 0) + seen.get("pending", 0)
        nothing = passed + failed + skipped == 0
        counts.append(RunnerCount("jest", passed, failed, 0, skipped, nothing, line=line))
    for match in _last(_JEST_NOTHING, text):
        counts.append(RunnerCount("jest", collected_nothing=True, line=_line(text, match)))
    found = list(_MOCHA.finditer(text))
    if found:
        seen = {match[2]: int(match[1]) for match in found}
        passed, failed, skipped = (seen.get(w, 0) for w in ("passing", "failing", "pending"))
        nothing, line = passed + failed + skipped == 0, _line(text, found[-1])
        counts.append(RunnerCount("mocha", passed, failed, 0, skipped, nothing, line=line))
    return counts


_TAP = re.compile(r"^(?:(not )?ok \d{1,9}\b([^\n]{0,500})|1\.\.(\d{1,9})\b)", re.M)
_NODE = re.compile(r"^[#ℹ] (pass|fail|tests) (\d{1,9})$", re.M)


def _tap(text: str) -> list[RunnerCount]:
    found = list(_TAP.finditer(text))
    counts: list[RunnerCount] = []
    if found:
        results = [match for match in found if match[3] is None]
        skipped = sum("# skip" in match[2].lower() for match in results)
        failed = sum(bool(match[1]) and "# todo" not in match[2].lower() for match in results)
        passed, nothing = len(results) - skipped - failed, [m[3] for m in found] == ["0"]
        line = _line(text, found[-1])
        if results or nothing:
            counts.append(
                RunnerCount("TAP", max(0, passed), failed, 0, skipped, nothing, line=line)
            )
    seen = {match[1]: match for match in _NODE.finditer(text)}
    if {"pass", "fail"} <= seen.keys():
        passed, failed = int(seen["pass"][2]), int(seen["fail"][2])
        nothing = "tests" in seen and seen["tests"][2] == "0"
        line = _line(text, seen["fail"])
        counts.append(
            RunnerCount("node --test", passed, failed, collected_nothing=nothing, line=line)
        )
    return counts


_CTEST = re.compile(r"^\d{1,3}% tests passed, (\d{1,9}) tests? failed out of (\d{1,9})", re.M)
_CTEST_NOTHING = re.compile(r"^No tests were found!!!|^No test configuration file found!", re.M)
_SUREFIRE = re.compile(
    r"^(?:\[\w{4,7}\] )?Tests run: (\d{1,9}), Failures: (\d{1,9}), Errors: (\d{1,9})"
    r"(?:, Skipped: (\d{1,9}))?",
    re.M,
)
_GRADLE = re.compile(
    r"^(\d{1,9}) tests completed(?:, (\d{1,9}) failed)?(?:, (\d{1,9}) skipped)?", re.M
)
_RSPEC = re.compile(r"^(\d{1,9}) examples?, (\d{1,9}) failures?(?:, (\d{1,9}) pending)?", re.M)
_PHPUNIT = re.compile(
    r"^(?:OK \((\d{1,9}) tests?|Tests: (\d{1,9}), Assertions: \d{1,9}([^\n]{0,200})"
    r"|No tests executed!)",
    re.M,
)


def _total(runner: str, total: int, bad: int, skipped: int, line: int) -> RunnerCount:
    passed = max(0, total - bad - skipped)
    return RunnerCount(runner, passed, bad, 0, skipped, total == 0, line=line)


def _others(text: str) -> list[RunnerCount]:
    """Summaries of runners that print a total and the number of failures."""
    counts: list[RunnerCount] = []
    for match in _last(_CTEST, text):
        counts.append(_total("ctest", int(match[2]), int(match[1]), 0, _line(text, match)))
    for match in _last(_CTEST_NOTHING, text):
        counts.append(_total("ctest", 0, 0, 0, _line(text, match)))
    for match in _last(_SUREFIRE, text):
        bad = int(match[2]) + int(match[3])
        counts.append(_total("maven", int(match[1]), bad, int(match[4] or 0), _line(text, match)))
    for match in _last(_GRADLE, text):
        bad, skipped = int(match[2] or 0), int(match[3] or 0)
        counts.append(_total("gradle", int(match[1]), bad, skipped, _line(text, match)))
    for match in _last(_RSPEC, text):
        count = _total(
            "rspec", int(match[1]), int(match[2]), int(match[3] or 0), _line(text, match)
        )
        counts.append(count)
    for match in _last(_PHPUNIT, text):
        numbers = dict(re.findall(r"(Failures|Errors|Skipped): (\d{1,9})", match[3] or ""))
        bad = int(numbers.get("Failures", 0)) + int(numbers.get("Errors", 0))
        total = int(match[1] or match[2] or 0)
        skipped = int(numbers.get("Skipped", 0))
        counts.append(_total("phpunit", total, bad, skipped, _line(text, match)))
    return counts


_READERS: tuple[Callable[[str], list[RunnerCount]], ...] = (
    _pytest,
    _unittest,
    _go,
    _cargo,
    _javascript,
    _tap,
    _others,
)
