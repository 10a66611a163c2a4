"""Signs of tests that could not be collected, or that do not exist."""

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
# Raised by a test module that inspects the agent's work.
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


def python_does_not_parse(output: Output, failure: Failure, owners: PathOwners) -> Sign | None:
    """Return the sign of a syntax error: of the task if it is under /tests, else of the work."""
    if failure.kind not in _SYNTAX:
        return None
    frame = failure.frames[-1]
    owner = owners.owner(frame.path)
    # `<string>` may be code that the work passes to eval.
    if owner is Owner.LIBRARY or frame.path.startswith("<"):
        return None
    clause = f"{frame.path} is not valid Python (line {frame.line}: {shorten(failure.message, 80)})"
    blame = Blame.TASK if owner is Owner.GRADER else Blame.WORK
    return Sign(blame, clause, output.evidence(failure.position))


def collection_failed(output: Output, failure: Failure, owners: PathOwners) -> Sign | None:
    """Return the sign of another error during collection; it may be about the work."""
    if failure.kind in _SYNTAX or failure.kind.endswith(("ImportError", "ModuleNotFoundError")):
        return None
    owner, frame = owners.culprit(failure)
    evidence = output.evidence(failure.position)
    name = failure.kind.rsplit(".", 1)[-1]
    if owner is Owner.WORK:
        return Sign(Blame.WORK, f"{frame.path} raised {name} when imported", evidence)
    if failure.kind in _ABOUT_THE_WORK or _work_file_is_missing(failure, owners):
        return Sign(Blame.WORK, f"{name} while the tests looked at the work", evidence, sure=False)
    line = f" line {frame.line}" if frame.line else ""
    clause = f"the grader's {frame.path}{line} raised {name} before any test ran"
    return Sign(Blame.GRADER, clause, evidence)


def _work_file_is_missing(failure: Failure, owners: PathOwners) -> bool:
    match = _PATH.search(failure.message)
    if failure.kind != "FileNotFoundError" or match is None:
        return False
    # A name without a folder may be a command that `subprocess` did not find.
    return not is_tool(match[1]) and owners.owner(match[1]) is Owner.WORK


_NOT_FOUND = re.compile(r"^ERROR: (?:file or directory )?not found: (\S{1,500})", re.M)
_PLUGIN = re.compile(r'^(?:ImportError: |ERROR: )?Error importing plugin "([^"\n]{1,200})"', re.M)
_USAGE = re.compile(r"^[^\n]{0,200}(?:pytest|__main__\.py): error: ([^\n]{1,200})", re.M)
_INTERNAL = re.compile(r"^INTERNALERROR> ([\w.]{1,100}(?:Error|Exception)\b[^\n]{0,200})", re.M)
_FIXTURE = re.compile(r"^E {7}fixture '([^'\n]{1,200})' not found", re.M)


def runner_refused(output: Output, deliverables: Deliverables) -> Sign | None:
    """Return the sign of a pytest without a file, plugin, option or fixture that it needs."""
    text = output.text
    if match := _NOT_FOUND.search(text):
        evidence = output.evidence(match.start())
        path = match[1].split("::")[0]
        if deliverables.has_path(path):
            return Sign(Blame.WORK, f"{path}, which the instruction asks for, is missing", evidence)
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


def nothing_collected(
    name: str, counts: list[RunnerCount], deliverables: Deliverables
) -> Sign | None:
    """Return the sign of a runner that ran no test; if tests are a deliverable, blame the work."""
    for count in counts:
        if not count.collected_nothing and not count.interrupted:
            continue
        where = f"verifier/{name}:{count.line}" if count.line else f"verifier/{name}"
        if deliverables.include_tests():
            evidence = Evidence(
                f"{count.runner} found no test, and the agent was to write them", where
            )
            return Sign(Blame.WORK, "the agent wrote no tests that can be run", evidence)
        problem = "could not collect its tests" if count.interrupted else "collected no tests"
        evidence = Evidence(f"{count.runner} {problem}", where)
        return Sign(Blame.GRADER, f"the grader's {count.runner} {problem}", evidence)
    return None
