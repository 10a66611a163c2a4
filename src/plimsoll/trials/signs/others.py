"""Loading that failed in other languages: a module that Node or Ruby does not find, a suite
that Jest cannot load. Whose it is follows from who asked, and from where the path leads."""

import re

from plimsoll.trials.signs.asked import Asked
from plimsoll.trials.signs.output import Blame, Output, Sign
from plimsoll.trials.signs.tracebacks import Owner, Places

__all__ = ["node_import", "ruby_load", "suite_failed"]

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


def node_import(output: Output, places: Places, asked: Asked) -> Sign | None:
    """A module that Node does not find. A path that leads out of the tests is the work's."""
    for match in _NODE.finditer(output.text):
        name, importer = match[1], match[2] or match[3] or ""
        stem = re.sub(r"\.[cm]?[jt]sx?$", "", name).rsplit("/", 1)[-1]
        leads_out = name.startswith("../") or (
            name.startswith("/") and places.owner(name) is Owner.WORK
        )
        if leads_out or asked.module(stem):
            return Sign(Blame.WORK, f"`{name}` is not there", output.evidence(match.start()))
        if importer.startswith(_TESTS):
            clause = f"the grader could not import `{name}`"
            return Sign(Blame.GRADER, clause, output.evidence(match.start()))
        if importer:
            clause = f"{importer} could not import `{name}`"
            return Sign(Blame.WORK, clause, output.evidence(match.start()), sure=False)
    return None


def ruby_load(output: Output, places: Places, asked: Asked) -> Sign | None:
    """A file of the work that Ruby does not find. A library that it does not find says nothing."""
    for match in _RUBY.finditer(output.text):
        path = match[1]
        if asked.module(path.rsplit("/", 1)[-1]) or (
            path.startswith("/") and places.owner(path) is Owner.WORK
        ):
            return Sign(Blame.WORK, f"`{path}` is not there", output.evidence(match.start()))
    return None


def suite_failed(output: Output, places: Places) -> Sign | None:
    """A suite that Jest could not load because the work does not parse, or throws when loaded."""
    start = output.text.find("Test suite failed to run")
    if start < 0:
        return None
    for pattern in (_JS_SYNTAX, _JS_FRAME):
        for match in pattern.finditer(output.text, start):
            if "node_modules/" in match[1]:
                continue
            if places.owner(match[1]) is Owner.WORK:
                clause = f"{match[1]} cannot be loaded"
                return Sign(Blame.WORK, clause, output.evidence(match.end()), sure=False)
            break
    return None
