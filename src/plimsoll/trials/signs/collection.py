"""Tests that could not be collected, or were not there at all."""

import re

from plimsoll.trials.runner_counts import RunnerCount
from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.missing_tools import is_tool
from plimsoll.trials.signs.output import Blame, Output, Sign, shorten
from plimsoll.trials.signs.tracebacks import Failure, Owner, PathOwners
from plimsoll.trials.verdicts import Evidence

__all__ = [
    "collection_failed",
    "nothing_collected",
    "python_does_not_parse",
    "runner_refused",
]

_SYNTAX = frozenset({"SyntaxError", "IndentationError", "TabError"})
# Raised by a test module while it looks at what the agent made.
_ABOUT_THE_WORK = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "subprocess.CalledProcessError",
        "subprocess.TimeoutExpired",
        "json.decoder.JSONDecodeError",
        "UnicodeDecodeError",
        "PermissionError",
        "IsADirectoryError",
        "NotADirectoryError",
    }
)
_PATH = re.compile(r"No such file or directory: '([^'\n]{1,500})'")


def python_does_not_parse(output: Output, failure: Failure, places: PathOwners) -> Sign | None:
    """A Python file with a syntax error: the task's if it is under /tests, else the work's."""
    if failure.kind not in _SYNTAX:
        return None
    frame = failure.frames[-1]
    owner = places.owner(frame.path)
    # `<string>` may be what the code under test hands to eval.
    if owner is Owner.LIBRARY or frame.path.startswith("<"):
        return None
    clause = f"{frame.path} is not valid Python (line {frame.line}: {shorten(failure.message, 80)})"
    blame = Blame.TASK if owner is Owner.GRADER else Blame.WORK
    return Sign(blame, clause, output.evidence(failure.position))


def collection_failed(output: Output, failure: Failure, places: PathOwners) -> Sign | None:
    """Another error while a test module was loaded. It may speak of the work: a file not made."""
    if failure.kind in _SYNTAX or failure.kind.endswith(("ImportError", "ModuleNotFoundError")):
        return None
    owner, frame = places.culprit(failure)
    evidence = output.evidence(failure.position)
    name = failure.kind.rsplit(".", 1)[-1]
    if owner is Owner.WORK:
        return Sign(Blame.WORK, f"{frame.path} raised {name} when imported", evidence)
    if failure.kind in _ABOUT_THE_WORK or _misses_a_file_of_the_work(failure, places):
        return Sign(Blame.WORK, f"{name} while the tests looked at the work", evidence, sure=False)
    line = f" line {frame.line}" if frame.line else ""
    clause = f"the grader's {frame.path}{line} raised {name} before any test ran"
    return Sign(Blame.GRADER, clause, evidence)


def _misses_a_file_of_the_work(failure: Failure, places: PathOwners) -> bool:
    match = _PATH.search(failure.message)
    if failure.kind != "FileNotFoundError" or match is None:
        return False
    # A bare name may be a command that `subprocess` did not find.
    return not is_tool(match[1]) and places.owner(match[1]) is Owner.WORK


_NOT_FOUND = re.compile(r"^ERROR: (?:file or directory )?not found: (\S{1,500})", re.M)
_PLUGIN = re.compile(r'^(?:ImportError: |ERROR: )?Error importing plugin "([^"\n]{1,200})"', re.M)
_USAGE = re.compile(r"^[^\n]{0,200}(?:pytest|__main__\.py): error: ([^\n]{1,200})", re.M)
_INTERNAL = re.compile(r"^INTERNALERROR> ([\w.]{1,100}(?:Error|Exception)\b[^\n]{0,200})", re.M)
_FIXTURE = re.compile(r"^E {7}fixture '([^'\n]{1,200})' not found", re.M)


def runner_refused(output: Output, asked: Deliverables) -> Sign | None:
    """pytest that did not start: a file, a plugin, an option or a fixture that is not there."""
    text = output.text
    if match := _NOT_FOUND.search(text):
        evidence = output.evidence(match.start())
        path = match[1].split("::")[0]
        if asked.path(path):
            return Sign(
                Blame.WORK, f"{path}, which the instruction asks for, is not there", evidence
            )
        return Sign(Blame.GRADER, f"the grader's pytest did not find {match[1]}", evidence)
    rules = (
        (_PLUGIN, "the grader's pytest has no plugin `{}`"),
        (_USAGE, "the grader's pytest refused its options ({})"),
        (_INTERNAL, "the grader's pytest failed inside ({})"),
        (_FIXTURE, "the grader's tests need the fixture `{}`, which no plugin provides"),
    )
    for pattern, clause in rules:
        if match := pattern.search(text):
            evidence = output.evidence(match.start())
            return Sign(Blame.GRADER, clause.format(shorten(match[1], 80)), evidence)
    return None


def nothing_collected(name: str, counts: list[RunnerCount], asked: Deliverables) -> Sign | None:
    """A runner that found no test, or stopped before the first. Not where the agent writes them."""
    for count in counts:
        if not count.collected_nothing and not count.interrupted:
            continue
        where = f"verifier/{name}:{count.line}" if count.line else f"verifier/{name}"
        if asked.tests():
            evidence = Evidence(
                f"{count.runner} found no test, and the agent was to write them", where
            )
            return Sign(Blame.WORK, "the agent wrote no tests that can be run", evidence)
        did = "could not collect its tests" if count.interrupted else "collected no tests"
        evidence = Evidence(f"{count.runner} {did}", where)
        return Sign(Blame.GRADER, f"the grader's {count.runner} {did}", evidence)
    return None
