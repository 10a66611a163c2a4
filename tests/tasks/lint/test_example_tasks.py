"""Example tasks: valid ones are clean, broken ones violate the expected rules."""

from pathlib import Path

import pytest

from plimsoll.tasks.lint.linter import lint_task
from plimsoll.tasks.lint.parsed_task import LintSettings
from plimsoll.tasks.loader import load_tasks

EXAMPLES = Path(__file__).parents[3] / "examples"
BROKEN = {
    "bare-json-scalar": {"invalid-reward"},
    "boolean-reward": {"invalid-reward"},
    "clone-fails-at-set-up": {"clone-at-build", "unpinned-clone"},
    "crlf-test-script": {"crlf-line-endings"},
    "curl-pipe-sh-then-zero": {
        "fetch-then-zero",
        "pipe-to-shell-without-pipefail",
        "source-of-fetched-file",
    },
    "empty-reward-file": {"invalid-reward"},
    "empty-reward-json": {"invalid-reward"},
    "grader-needs-missing-tool": {"fetch-then-zero"},
    "grader-times-out": {"grader-sleeps-past-timeout"},
    "healthcheck-never-passes": set(),  # Something could still make the file.
    "huge-number": {"invalid-reward"},
    "later-step-crashes": {"missing-test-file", "reward-only-at-end-under-set-e"},
    "missing-test-script": {"missing-test-script"},
    "misspelt-key": {"unknown-key"},
    "misspelt-reward-file": {"misspelt-reward-file"},
    "nan-reward": {"invalid-reward"},
    "negative-reward": {"negative-reward"},
    "nested-reward": {"invalid-reward"},
    "no-reward-file": {"no-reward-written"},
    "no-tests-collected": {"no-tests-collected"},
    "parser-cannot-be-imported": {"grader-import-missing"},
    "pytest-missing": {"grader-import-missing"},
    "reward-out-of-range": {"invalid-reward"},
    "set-up-command-fails": {"set-up-always-fails"},
    "solution-fails": set(),  # The needs of the solution are unknown before it runs.
    "string-reward": {"invalid-reward"},
    "test-file-does-not-parse": {"tests-do-not-parse"},
    "two-rewards-differ": {"invalid-reward"},
    "wants-a-gpu": {"unenforced-limit"},
}
"""Expected findings of each broken example if no phase has a network."""
NEEDS_OFFLINE = {"clone-at-build"}


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("folder", ["tasks", "root"])
def test_valid_examples_are_clean(folder, offline):
    loaded = load_tasks(EXAMPLES / folder)
    assert not loaded.invalid
    for task in loaded.tasks:
        assert lint_task(task, LintSettings(offline=offline)) == (), task.name


def test_every_broken_example_is_in_the_table():
    assert {task.name for task in load_tasks(EXAMPLES / "broken").tasks} == BROKEN.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_example_violates_its_rules(name):
    [task] = load_tasks(EXAMPLES / "broken", name).tasks
    offline = {finding.rule for finding in lint_task(task, LintSettings(offline=True))}
    assert offline == BROKEN[name]
    assert {finding.rule for finding in lint_task(task)} == BROKEN[name] - NEEDS_OFFLINE
