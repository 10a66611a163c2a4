"""Signs of broken scripts of the task: syntax errors, CRLF line endings, missing files."""

import re

from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.missing_tools import is_graders_script
from plimsoll.trials.signs.output import Blame, Output, Sign

__all__ = ["line_endings", "missing_test_file", "script_does_not_parse"]

_CARRIAGE = re.compile(
    r"^(?P<script>[^\s:]{1,300}): (?:line )?(?P<line>\d{1,9}): (?:[^\n:]{1,100}: )?"
    r"(?:\$'[^'\n]{0,100}\\r'|\r|set: (?:-: invalid|Illegal) option -?\r?$)"
    r"|^(?:/usr/bin/|/bin/)?env: [‘'\"](?P<env>[^'’\"\n]{1,100}\\r)['’\"]: No such file"
    r"|^(?:\S{1,20}: )?(?P<bad>[^\s:]{1,300}): "
    r"[^\n]{0,100}(?:\^M|\\r|\r)[^\n]{0,10}: bad interpreter",
    re.M,
)
_SYNTAX = re.compile(
    r"^([^\s:]{1,300}): (?:line )?(\d{1,9}): "
    r"((?:syntax error|Syntax error|unexpected EOF while looking for matching)[^\n]{0,200})",
    re.M,
)
_MISSING = re.compile(
    r"^[^\n]{0,300}?(/(?:tests|opt)/[^\s:'\"]{1,300})['\"]?: "
    r"(?:\[Errno 2\] )?No such file or directory"
    r"|^[^\n]{0,300}?No such file or directory: '(/(?:tests|opt)/[^'\n]{1,300})'"
    r"|^[^\n]{0,300}?can't cd to (/(?:tests|opt)/\S{1,300})",
    re.M,
)


def line_endings(output: Output) -> Sign | None:
    """Return the sign of a script with CRLF line endings."""
    for match in _CARRIAGE.finditer(output.text):
        script = match["script"] or match["bad"] or ""
        if match["env"] or is_graders_script(script):
            named = script or "tests/test.sh"
            clause = f"{named} has Windows line endings (CRLF), which no shell can run"
            return Sign(Blame.TASK, clause, output.evidence(match.start()))
    return None


def script_does_not_parse(output: Output) -> Sign | None:
    """Return the sign of a shell script of the grader with a syntax error."""
    for match in _SYNTAX.finditer(output.text):
        if is_graders_script(match[1]):
            clause = f"{match[1]} is not a valid shell script (line {match[2]}: {match[3].strip()})"
            return Sign(Blame.TASK, clause, output.evidence(match.start()))
    return None


def missing_test_file(output: Output, deliverables: Deliverables) -> Sign | None:
    """Return the sign of a missing file under /tests or /opt that is not a deliverable."""
    if "No such file" not in output.text and "can't cd" not in output.text:
        return None
    for match in _MISSING.finditer(output.text):
        path = match[1] or match[2] or match[3]
        is_deliverable = deliverables.has_path(path) or (
            path.startswith("/opt/") and deliverables.mentions_folder(path)
        )
        if not is_deliverable:
            clause = f"the grader needs {path}, which is missing"
            return Sign(Blame.GRADER, clause, output.evidence(match.start()))
    return None
