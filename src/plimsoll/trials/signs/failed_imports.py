"""Signs of failed imports of the grader or of the code under test, in Python and others.

`No module named 'x'` alone does not tell who is to blame. A frame of the grader that imports
`x` blames the grader, unless `x` is a deliverable; a frame of the work blames the work. For
Node, Ruby and Jest the blame follows from the importing file and from the path.
"""

import re

from plimsoll.trials.signs.deliverables import Deliverables
from plimsoll.trials.signs.output import Blame, Output, Sign
from plimsoll.trials.signs.tracebacks import Failure, Owner, PathOwners

__all__ = [
    "caught_import",
    "import_failed",
    "node_import",
    "parsers_missing",
    "ruby_load",
    "suite_failed",
]

_MODULE = re.compile(r"No module named '?([\w./-]{1,200})")
_NAME = re.compile(
    r"cannot import name '?([\w.]{1,200})'? from (?:partially initialized module )?"
    r"'?([\w.]{1,200})'?"
    r"(?:[^()]{0,10}\(most likely[^()]{0,60}\))?(?: \((/[^)]{1,500})\))?"
)


def import_failed(
    output: Output, failure: Failure, owners: PathOwners, deliverables: Deliverables
) -> Sign | None:
    """Return the sign of one ImportError, by its frames."""
    if failure.kind not in ("ModuleNotFoundError", "ImportError"):
        return None
    owner, frame = owners.culprit(failure)
    evidence = output.evidence(failure.position)
    if name := _NAME.search(failure.message):
        return _name_missing(name, owner, output, failure, owners, deliverables)
    module = _MODULE.search(failure.message)
    what = f"`{module[1]}`" if module else "a library"
    if module and deliverables.has_module(module[1]):
        clause = f"{what}, which the instruction asks for, is missing"
        return Sign(Blame.WORK, clause, evidence)
    if owner is Owner.WORK:
        return Sign(Blame.WORK, f"{frame.path} could not import {what}", evidence, sure=False)
    return Sign(Blame.GRADER, f"the grader could not import {what}", evidence)


def _name_missing(
    name: re.Match[str],
    owner: Owner,
    output: Output,
    failure: Failure,
    owners: PathOwners,
    deliverables: Deliverables,
) -> Sign:
    """Return the sign of a failed `from m import n`: the file of `m` tells who is to blame."""
    evidence = output.evidence(failure.position)
    found_in = owners.owner(name[3]) if name[3] else None
    if found_in is Owner.WORK or (found_in is None and deliverables.has_module(name[2])):
        return Sign(Blame.WORK, f"`{name[2]}` has no `{name[1]}`", evidence)
    if found_in is not Owner.GRADER and owner is Owner.WORK:
        clause = f"the work could not import `{name[1]}` from `{name[2]}`"
        return Sign(Blame.WORK, clause, evidence, sure=False)
    clause = f"the grader could not import `{name[1]}` from `{name[2]}`"
    return Sign(Blame.GRADER, clause, evidence)


_CAUGHT = re.compile(
    # Exclude lines of a diff, of pytest and of `python -m x`, and lines of a traceback that
    # begin with the exception.
    r"^(?![<>+|-] |E  |\S{0,300}python[\d.]{0,5}: )[^\n]{0,300}?"
    r"(?:No module named '?([\w.]{1,200})'?"
    r"|(?:[Cc]ould not|[Cc]annot|[Ff]ailed to|[Uu]nable to) import (?!name |test module)"
    r"(?:module )?[`'\"]?([\w.]{1,200})(?![^\n]{0,20}\(import-error\)))",
    re.M,
)
_PARSERS = re.compile(
    r"^(?![<>+|-] )[^\n]{0,200}?\b([\w-]{0,60} ?parsers? not found)\b", re.M | re.I
)


def caught_import(
    output: Output, explained: frozenset[int], deliverables: Deliverables
) -> Sign | None:
    """Return the sign of an ImportError that the grader catches and prints without a traceback."""
    if "No module named" not in output.text and " import " not in output.text:
        return None
    for match in _CAUGHT.finditer(output.text):
        name = match[1] or match[2]
        if match.start() in explained or deliverables.has_module(name):
            continue
        clause = f"the grader could not import `{name}`"
        return Sign(Blame.GRADER, clause, output.evidence(match.start()))
    return None


def parsers_missing(output: Output, start: int = 0) -> Sign | None:
    """Return the sign of a grader without a parser for the output of the tests."""
    match = _PARSERS.search(output.text, start)
    if match is None:
        return None
    clause = f"the grader has no parser for the tests' output ({match[1].strip()})"
    return Sign(Blame.GRADER, clause, output.evidence(match.start()))


_NODE = re.compile(
    r"^(?:# |[ \t]{1,8})?(?:\S{0,40}Error[^\n:]{0,40}: )?"
    r"Cannot find (?:module|package) '([^'\n]{1,300})'"
    r"(?:(?: imported)? from '?([^'\n]{1,300})'?"
    r"|\n(?:# )?Require stack:\n(?:# )?- ([^\n]{1,300}))?",
    re.M,
)
_TESTS = ("/tests/", "tests/", "../tests/", "file:///tests/")
_RUBY = re.compile(r"^[^\n]{0,300}cannot load such file -- (\S{1,300})", re.M)
_JS_FRAME = re.compile(
    r"^[ \t]{1,12}at (?:[^\n(]{0,200}\()?((?:/|\.\./)?[\w.@][^\s():]{0,300}):\d{1,9}:\d{1,9}", re.M
)
_JS_SYNTAX = re.compile(r"^[ \t]{0,8}SyntaxError: (/[^\s:]{1,300}\.[cm]?[jt]sx?): ", re.M)


def node_import(output: Output, owners: PathOwners, deliverables: Deliverables) -> Sign | None:
    """Return the sign of a module that Node does not find. Paths outside the tests are work."""
    for match in _NODE.finditer(output.text):
        name, importer = match[1], match[2] or match[3] or ""
        stem = re.sub(r"\.[cm]?[jt]sx?$", "", name).rsplit("/", 1)[-1]
        leads_out = name.startswith("../") or (
            name.startswith("/") and owners.owner(name) is Owner.WORK
        )
        if leads_out or deliverables.has_module(stem):
            return Sign(Blame.WORK, f"`{name}` is not there", output.evidence(match.start()))
        if importer.startswith(_TESTS):
            clause = f"the grader could not import `{name}`"
            return Sign(Blame.GRADER, clause, output.evidence(match.start()))
        if importer:
            clause = f"{importer} could not import `{name}`"
            return Sign(Blame.WORK, clause, output.evidence(match.start()), sure=False)
    return None


def ruby_load(output: Output, owners: PathOwners, deliverables: Deliverables) -> Sign | None:
    """Return the sign of a file of the work that Ruby does not find; ignore libraries."""
    for match in _RUBY.finditer(output.text):
        path = match[1]
        if deliverables.has_module(path.rsplit("/", 1)[-1]) or (
            path.startswith("/") and owners.owner(path) is Owner.WORK
        ):
            return Sign(Blame.WORK, f"`{path}` is not there", output.evidence(match.start()))
    return None


def suite_failed(output: Output, owners: PathOwners) -> Sign | None:
    """Return the sign of a Jest suite that fails to load because of the work."""
    start = output.text.find("Test suite failed to run")
    if start < 0:
        return None
    for pattern in (_JS_SYNTAX, _JS_FRAME):
        for match in pattern.finditer(output.text, start):
            if "node_modules/" in match[1]:
                continue
            if owners.owner(match[1]) is Owner.WORK:
                clause = f"{match[1]} cannot be loaded"
                return Sign(Blame.WORK, clause, output.evidence(match.end()), sure=False)
            break
    return None
