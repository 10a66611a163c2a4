"""SARIF output: rules with help texts, and locations relative to the linted folder."""

from pathlib import Path

from plimsoll.tasks.lint.linter import ALL_RULES, lint_tasks
from plimsoll.tasks.lint.sarif import sarif
from plimsoll.tasks.loader import load_tasks

BROKEN = Path(__file__).parents[3] / "examples/broken"


def test_results_have_rules_levels_and_relative_locations():
    linted = list(lint_tasks(load_tasks(BROKEN)))
    found = sarif(linted, ALL_RULES, BROKEN)
    assert found["version"] == "2.1.0"
    [run] = found["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) == len(ALL_RULES)
    assert len(run["results"]) == sum(len(one.findings) for one in linted)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        [location] = result["locations"]
        physical = location["physicalLocation"]
        uri = physical["artifactLocation"]["uri"]
        assert not uri.startswith("/")
        assert ".." not in uri
        assert (BROKEN / uri).exists() or result["ruleId"] == "missing-test-script"
        assert physical.get("region", {"startLine": 1})["startLine"] >= 1
    for rule in rules:
        assert rule["help"]["text"]
        assert rule["fullDescription"]["text"]


def test_names_with_spaces_are_quoted(tmp_path):
    folder = tmp_path / "a task"
    folder.mkdir()
    (folder / "task.toml").write_text("x = \n")
    [run] = sarif(list(lint_tasks(load_tasks(tmp_path))), ALL_RULES, tmp_path)["runs"]
    [result] = run["results"]
    physical = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert physical == {"uri": "a%20task/task.toml", "uriBaseId": "TASKS"}
