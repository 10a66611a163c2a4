"""SARIF 2.1.0 output of lint, for code hosts and editors."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from plimsoll import __version__
from plimsoll.tasks.lint.linter import LintResult
from plimsoll.tasks.lint.rule import Finding, Rule

__all__ = ["sarif"]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

Json = dict[str, object]


def sarif(results: Sequence[LintResult], rules: Sequence[Rule], root: Path) -> Json:
    """Return a SARIF log of one run with all rules and findings; paths are relative to `root`."""
    index = {rule.id: at for at, rule in enumerate(rules)}
    findings = [
        _result(finding, result.path, root, index[finding.rule])
        for result in results
        for finding in result.findings
    ]
    driver: Json = {
        "name": "plimsoll lint",
        "version": __version__,
        "rules": [_rule(rule) for rule in rules],
    }
    run: Json = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"TASKS": {"uri": f"{root.resolve().as_uri()}/"}},
        "results": findings,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.id.replace("-", " ").capitalize()},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\n{rule.fix}"},
        "defaultConfiguration": {"level": str(rule.severity)},
    }


def _result(finding: Finding, folder: Path, root: Path, index: int) -> Json:
    path = (folder / finding.file).relative_to(root).as_posix()
    location: Json = {"artifactLocation": {"uri": quote(path), "uriBaseId": "TASKS"}}
    if finding.line is not None:
        location["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": str(finding.severity),
        "message": {"text": f"{finding.task}: {finding.message}"},
        "locations": [{"physicalLocation": location}],
    }
