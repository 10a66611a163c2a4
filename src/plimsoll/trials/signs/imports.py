"""An import that failed, and whose: the grader's own, or that of the code under test.

`No module named 'x'` alone says nothing. A frame of the grader that imports `x` blames the
grader, unless the instruction asks the agent for `x`; a frame of the work blames the work.
"""

import re

from plimsoll.trials.signs.asked import Asked
from plimsoll.trials.signs.output import Blame, Output, Sign
from plimsoll.trials.signs.tracebacks import Failure, Owner, Places

__all__ = ["caught_import", "import_failed", "parsers_missing"]

_MODULE = re.compile(r"No module named '?([\w./-]{1,200})")
_NAME = re.compile(
    r"cannot import name '?([\w.]{1,200})'? from (?:partially initialized module )?"
    r"'?([\w.]{1,200})'?"
    r"(?:[^()]{0,10}\(most likely[^()]{0,60}\))?(?: \((/[^)]{1,500})\))?"
)


def import_failed(output: Output, failure: Failure, places: Places, asked: Asked) -> Sign | None:
    """Judges one ImportError by its frames."""
    if failure.kind not in ("ModuleNotFoundError", "ImportError"):
        return None
    owner, frame = places.culprit(failure)
    evidence = output.evidence(failure.position)
    if name := _NAME.search(failure.message):
        return _name_missing(name, owner, output, failure, places, asked)
    module = _MODULE.search(failure.message)
    what = f"`{module[1]}`" if module else "a library"
    if module and asked.module(module[1]):
        clause = f"{what}, which the instruction asks for, is not there"
        return Sign(Blame.WORK, clause, evidence)
    if owner is Owner.WORK:
        return Sign(Blame.WORK, f"{frame.path} could not import {what}", evidence, sure=False)
    return Sign(Blame.GRADER, f"the grader could not import {what}", evidence)


def _name_missing(
    name: re.Match[str],
    owner: Owner,
    output: Output,
    failure: Failure,
    places: Places,
    asked: Asked,
) -> Sign:
    """`from m import n`: the module is there, so the file it was found in says whose it is."""
    evidence = output.evidence(failure.position)
    found_in = places.owner(name[3]) if name[3] else None
    if found_in is Owner.WORK or (found_in is None and asked.module(name[2])):
        return Sign(Blame.WORK, f"`{name[2]}` has no `{name[1]}`", evidence)
    if found_in is not Owner.GRADER and owner is Owner.WORK:
        clause = f"the work could not import `{name[1]}` from `{name[2]}`"
        return Sign(Blame.WORK, clause, evidence, sure=False)
    clause = f"the grader could not import `{name[1]}` from `{name[2]}`"
    return Sign(Blame.GRADER, clause, evidence)


_CAUGHT = re.compile(
    # Not a line of a diff, of pytest, of `python -m x`, nor one that names its exception flush
    # left: those belong to a traceback.
    r"^(?![<>+|-] |E  |\S{0,300}python[\d.]{0,5}: )[^\n]{0,300}?"
    r"(?:No module named '?([\w.]{1,200})'?"
    r"|(?:[Cc]ould not|[Cc]annot|[Ff]ailed to|[Uu]nable to) import (?!name |test module)"
    r"(?:module )?[`'\"]?([\w.]{1,200})(?![^\n]{0,20}\(import-error\)))",
    re.M,
)
_PARSERS = re.compile(
    r"^(?![<>+|-] )[^\n]{0,200}?\b([\w-]{0,60} ?parsers? not found)\b", re.M | re.I
)


def caught_import(output: Output, explained: frozenset[int], asked: Asked) -> Sign | None:
    """A grader that catches its ImportError and prints it. `explained` lines have a traceback."""
    if "No module named" not in output.text and " import " not in output.text:
        return None
    for match in _CAUGHT.finditer(output.text):
        name = match[1] or match[2]
        if match.start() in explained or asked.module(name):
            continue
        clause = f"the grader could not import `{name}`"
        return Sign(Blame.GRADER, clause, output.evidence(match.start()))
    return None


def parsers_missing(output: Output, start: int = 0) -> Sign | None:
    """A grader that says it has no parser for the log of the tests."""
    match = _PARSERS.search(output.text, start)
    if match is None:
        return None
    clause = f"the grader has no parser for the tests' output ({match[1].strip()})"
    return Sign(Blame.GRADER, clause, output.evidence(match.start()))
